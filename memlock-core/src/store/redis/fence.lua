-- Raises the counter of fences to the server's time in microseconds, and to ARGV[1], unless it is
-- greater already; returns it. Fences therefore rise also if the server has lost the counter.
local time = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[1]) or 0) or 0
local fence = math.max(time[1] * 1000000 + time[2], last, tonumber(ARGV[1]))
local text = string.format('%.0f', fence)
if fence > last then
  redis.call('SET', KEYS[1], text)
end
return text
