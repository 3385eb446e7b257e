-- Add one record to a session that is as long as its caller believes, in one step.
--
-- KEYS: 1 the session's records, a list   2 the tenant's sessions, a sorted set: id -> milliseconds of its last use
-- ARGV: 1 version expected, "new" to make the session unless it is there   2 record   3 id   4 milliseconds to live
-- Returns 1, 0 where the version is another one, -1 where there is no session.

local life = tonumber(ARGV[4])
local version = redis.call('LLEN', KEYS[1]) - 1
if ARGV[1] == 'new' then
  if version ~= -1 then return 1 end
else
  if version == -1 then return -1 end
  if version ~= tonumber(ARGV[1]) then return 0 end
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
redis.call('RPUSH', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], life)
redis.call('ZADD', KEYS[2], string.format('%.3f', now), ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.3f', now - life))
redis.call('PEXPIRE', KEYS[2], life)
return 1
