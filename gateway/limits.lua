-- Reserve or settle in one step, on the server's clock. The arithmetic is that of gateway/gcra.py and
-- gateway/account.py, in the same whole numbers; tests hold the two against each other.
--
-- KEYS: 1 account, a hash of requests, tokens (debts in credits) and at (milliseconds)
--       2 leases, a sorted set: lease -> when it expires, in milliseconds
--       3 this lease's mark that it was given up before it was taken
-- ARGV: 1 "reserve" or "settle"   2 lease        3 its length, milliseconds   4 now, or "" for the server's clock
--       5 requests per minute     6 tokens per minute   7 parallel (each 0 where unlimited)
--       8 tokens to reserve, or by how many more was used than reserved
-- Returns {1 if done, else 0; debts of requests and tokens before; leases before; now}.

local MINUTE = 60000
local op, lease, length = ARGV[1], ARGV[2], tonumber(ARGV[3])
local requests_limit, tokens_limit, parallel = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local tokens = tonumber(ARGV[8])

local function server_time()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function leaked(debt, limit, elapsed)
  if limit == 0 then return 0 end
  return math.max(0, (tonumber(debt) or 0) - limit * math.max(0, elapsed))
end

local function moved(debt, limit, units)
  if limit == 0 then return 0 end
  return math.max(0, debt + units * MINUTE)
end

local function fits(debt, limit, units)
  return limit == 0 or debt + units * MINUTE <= limit * MINUTE
end

local function drain_time(debt, limit)
  return limit == 0 and 0 or math.ceil(debt / limit)
end

local now = tonumber(ARGV[4]) or server_time()
local stored = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'at')
local elapsed = now - (tonumber(stored[3]) or now)
local requests_debt = leaked(stored[1], requests_limit, elapsed)
local tokens_debt = leaked(stored[2], tokens_limit, elapsed)

redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[2], string.format('(%.0f', now + length + MINUTE), '+inf')
local running = redis.call('ZCARD', KEYS[2])

local function store(requests_after, tokens_after)
  redis.call('HSET', KEYS[1],
    'requests', string.format('%.0f', requests_after),
    'tokens', string.format('%.0f', tokens_after),
    'at', string.format('%.0f', now))
  local drained = math.max(drain_time(requests_after, requests_limit), drain_time(tokens_after, tokens_limit))
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', drained + MINUTE))
end

local done = 0
if op == 'settle' then
  if redis.call('ZREM', KEYS[2], lease) == 1 then
    store(requests_debt, moved(tokens_debt, tokens_limit, tokens))
    done = 1
  else
    -- A reservation that stalls on its way here was given up by who waited for it; it must not be taken later.
    redis.call('SET', KEYS[3], '', 'PX', MINUTE)
  end
elseif redis.call('EXISTS', KEYS[3]) == 0
  and fits(requests_debt, requests_limit, 1)
  and fits(tokens_debt, tokens_limit, tokens)
  and (parallel == 0 or running < parallel) then
  store(moved(requests_debt, requests_limit, 1), moved(tokens_debt, tokens_limit, tokens))
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + length), lease)
  redis.call('PEXPIRE', KEYS[2], length + MINUTE)
  done = 1
else
  store(requests_debt, tokens_debt) -- time passes for who is refused, whatever the clock does
end
return { done, requests_debt, tokens_debt, running, now }
