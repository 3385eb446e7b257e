-- Put another record in place of one that is still as its caller has read it, in one step.
--
-- KEYS: 1 the session's records, a list
-- ARGV: 1 number of the record   2 as it was read   3 as it shall be
-- Returns {1, records}, {0} where it is another one by now, {-1} where there is no session. It may be asked twice.

local found = redis.call('LINDEX', KEYS[1], ARGV[1])
if not found then return { -1 } end
if found ~= ARGV[2] and found ~= ARGV[3] then return { 0 } end
redis.call('LSET', KEYS[1], ARGV[1], ARGV[3])
return { 1, redis.call('LRANGE', KEYS[1], 0, -1) }
