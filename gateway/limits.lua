-- Reserve, settle or only look, in one step, on the server's clock. The arithmetic is that of gateway/gcra.py, gateway/periods.py
-- and gateway/account.py, in the same whole numbers; tests hold the two against each other.
--
-- KEYS: 1 account, a hash: debts in credits, `at` (milliseconds), money spent in billionths, day and month
--       2 leases, a sorted set: lease -> when it expires, in milliseconds
--       3 this lease's mark that it was given up before it was taken
-- ARGV: 1 "reserve", "settle" or "look"   2 lease   3 now, or "" for the server's clock   4 whole numbers in one
--       text, since clients take long for each argument:
--       1 the lease's length, milliseconds   2 parallel   3, 4 budgets of day and month, in billionths
--       5-8 rates per minute, 9-12 bursts, of requests, tokens, input tokens, output tokens (all 0 where unlimited)
--       13-16 units and 17 money to reserve, or by how many more were used than reserved
--       18, 19 when settling: the day and the month of the reservation
-- Returns {1 if done, else 0; leases before; now; the four debts, money spent in day and month, day, month, before}.
-- Each may be asked twice: a lease is taken once, and settled once.

local MINUTE, DAY = 60000, 86400000
local RATES = { 'requests', 'tokens', 'input_tokens', 'output_tokens' }
local op, lease, numbers = ARGV[1], ARGV[2], {}
for number in string.gmatch(ARGV[4], '%S+') do
  numbers[#numbers + 1] = tonumber(number)
end
local length, parallel, money = numbers[1], numbers[2], numbers[17]

local function server_time()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Days since 1970-01-01 to twelve times the year plus the month; the civil calendar by eras of 400 years,
-- https://howardhinnant.github.io/date_algorithms.html#civil_from_days
local function month_of(day)
  local shifted = day + 719468
  local era = math.floor(shifted / 146097)
  local of_era = shifted - era * 146097
  local year = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524)
    - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  return 12 * (year + era * 400) + math.floor((5 * of_year + 2) / 153) + 2 -- a year that begins in March
end

local function counted_in(stored, now)
  return stored == now + 1 and stored or now
end

local now = tonumber(ARGV[3]) or server_time()
local stored = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'input_tokens', 'output_tokens', 'at',
  'spent_in_day', 'spent_in_month', 'day', 'month')
for field = 1, 9 do
  stored[field] = tonumber(stored[field]) or (field == 5 and now or 0)
end

local elapsed = math.max(0, now - stored[5])
local debts, units, rates, bursts = {}, {}, {}, {}
for i = 1, 4 do
  rates[i], bursts[i], units[i] = numbers[4 + i], numbers[8 + i], numbers[12 + i]
  debts[i] = rates[i] == 0 and 0 or math.max(0, stored[i] - rates[i] * elapsed)
end

local today = math.floor(now / DAY)
local periods = { counted_in(stored[8], today), counted_in(stored[9], month_of(today)) }
local budgets, spent = {}, {}
for i = 1, 2 do
  budgets[i] = numbers[2 + i]
  spent[i] = periods[i] == stored[7 + i] and stored[5 + i] or 0
end

redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[2], string.format('(%.0f', now + length + MINUTE), '+inf')
local running = redis.call('ZCARD', KEYS[2])

local function fits()
  for i = 1, 4 do
    if rates[i] > 0 and debts[i] + units[i] * MINUTE > bursts[i] * MINUTE then return false end
  end
  for i = 1, 2 do
    if budgets[i] > 0 and spent[i] + money > budgets[i] then return false end
  end
  return parallel == 0 or running < parallel
end

-- The account after `times` (0 or 1) these units and this money, kept as long as it means anything.
local function store(times)
  local fields, life = { 'at', string.format('%.0f', now) }, 0
  for i = 1, 4 do
    local debt = rates[i] == 0 and 0 or math.max(0, debts[i] + times * units[i] * MINUTE)
    if rates[i] > 0 then life = math.max(life, math.ceil(debt / rates[i])) end
    fields[#fields + 1], fields[#fields + 2] = RATES[i], string.format('%.0f', debt)
  end
  for i = 1, 2 do
    local period = numbers[17 + i]
    local more = (period == nil or period == periods[i]) and times * money or 0
    local name = i == 1 and 'day' or 'month'
    local after = math.max(0, spent[i] + more)
    if after > 0 then life = math.max(life, (i == 1 and 2 or 63) * DAY) end
    fields[#fields + 1], fields[#fields + 2] = name, string.format('%.0f', periods[i])
    fields[#fields + 1], fields[#fields + 2] = 'spent_in_' .. name, string.format('%.0f', after)
  end
  redis.call('HSET', KEYS[1], unpack(fields))
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', life + MINUTE))
end

local done = 0
if op == 'settle' then
  if redis.call('ZREM', KEYS[2], lease) == 1 then
    store(1)
    done = 1
  else
    -- A reservation that stalls on its way here was given up by who waited for it; it must not be taken later.
    redis.call('SET', KEYS[3], '', 'PX', MINUTE)
  end
elseif op == 'reserve' and redis.call('ZSCORE', KEYS[2], lease) then
  for i = 1, 4 do debts[i] = math.max(0, debts[i] - units[i] * MINUTE) end
  for i = 1, 2 do spent[i] = math.max(0, spent[i] - money) end
  done, running = 1, running - 1
elseif op == 'reserve' and redis.call('EXISTS', KEYS[3]) == 0 and fits() then
  store(1)
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + length), lease)
  redis.call('PEXPIRE', KEYS[2], length + MINUTE)
  done = 1
elseif op == 'reserve' then
  store(0) -- time passes for who is refused, whatever the clock does
end
return { done, running, now, debts[1], debts[2], debts[3], debts[4], spent[1], spent[2], periods[1], periods[2] }
