-- Raises the counter of fences to the server's time in microseconds, and to ARGV[1], unless it is
-- greater already; returns it. Fences therefore rise also if the server has lost the counter.
--
-- All commands that `script.lua` and the drawing of a fence need are called here, so that a user who lacks
-- the right to one of them is refused before a lock is granted that cannot be given back. The increment
-- fails if something else is stored there. KEYS[2] is never stored.
local time = redis.call('TIME')
redis.call('INCRBY', KEYS[1], 0)
redis.call('INCR', KEYS[1])
redis.call('PTTL', KEYS[2])
redis.call('DEL', KEYS[2])
local last = tonumber(redis.call('GET', KEYS[1]))
local fence = math.max(time[1] * 1000000 + time[2], last, tonumber(ARGV[1]))
local text = string.format('%.0f', fence)
redis.call('SET', KEYS[1], text)
return text
