-- Raises the counter of fences KEYS[1], also above ARGV[1], and returns it.
--
-- A new life of the data begins when a server is started, and has another `run_id`; and when one is
-- promoted: `master_replid2` is the replication id of the server that it was a replica of. The note
-- KEYS[2] tells in which life the counter was raised, and to what. In a new life the counter may lack its
-- last numbers, or be that of an old copy: it is raised by a million, and to the server's time in
-- microseconds. If the note is missing, because it was evicted, it is raised to that time.
--
-- In a known life it is raised to a minute ago, for data that was replaced without a new life. It
-- follows the clock no closer: a replica that lacks the last raise, and whose clock is behind, could
-- then not rise above it when it is promoted.
--
-- A replica that accepts writes is refused: it forgets them when it resyncs, and its primary grants what it
-- grants. One that is read-only refuses the first write by itself.
--
-- All commands that `script.lua` and the drawing of a fence need are called here, so that a user who lacks
-- the right to one of them is refused before a lock is granted that cannot be given back. A right is one to
-- a command on some keys: KEYS[3] and KEYS[4] have the two forms of keys, that of items and that of queues.
-- Nothing is ever stored there. What another program stores at one of the keys is left alone: the increment
-- fails if that is at KEYS[1].
local replication = redis.call('INFO', 'replication')
local function is(field)
  return string.find(replication, '\n' .. field, 1, true)
end
if is('role:slave') and not is('slave_read_only:1') then
  return redis.error_reply('ISREPLICA and takes writes')
end

local note = '^(%w*/%w*) (%d+)$'

-- The reply if anything but a text of this pattern is at the key.
local function refusal(key, pattern)
  local found = redis.pcall('GET', key)
  if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then
    return found
  end
  if found and not (type(found) == 'string' and pattern and string.find(found, pattern)) then
    return redis.error_reply('FOREIGN ' .. key)
  end
end

local refused = refusal(KEYS[2], note) or refusal(KEYS[3]) or refusal(KEYS[4])
if refused then
  return refused
end
for place = 3, 4 do
  local key = KEYS[place]
  redis.call('SET', key, '', 'XX')
  redis.call('PTTL', key)
  redis.call('DEL', key)
end

local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
redis.call('INCRBY', KEYS[1], 0)
redis.call('INCR', KEYS[1])
local counter = tonumber(redis.call('GET', KEYS[1]))
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w*)') or ''
local source = string.match(replication, 'master_replid2:(%w*)') or ''
local life = run .. '/' .. source
local known, first = string.match(redis.call('GET', KEYS[2]) or '', note)

local is_known = life == known and counter >= tonumber(first)
local least = clock
if is_known then
  least = clock - 60000000
elseif known then
  counter = counter + 1000000
end
local text = string.format('%.0f', math.max(counter, least, tonumber(ARGV[1])))
redis.call('SET', KEYS[1], text)
if not is_known then
  redis.call('SET', KEYS[2], life .. ' ' .. text)
end
return text
