-- One operation on one item in one atomic step, for what plain commands cannot do.
--
-- A value is stored as `<version> <value>`. The version is 16 hexadecimal digits, and new with each
-- change. Plain counters and the items of other programs have no version; a hash of the value serves
-- as one.
local key, op = KEYS[1], ARGV[1]
local stored = redis.call('GET', key)

if not stored and op ~= 'increment' then
  return false
end

-- No item of memlock is longer. A longer one is neither sent nor hashed.
if stored and #stored > 1024 * 1024 + 1024 then
  return redis.error_reply('TOOLARGE')
end

-- Nearly every release: it is decided before the functions below are made.
if op == 'delete' and string.sub(stored, 1, 17) == ARGV[2] .. ' ' then
  redis.call('DEL', key)
  return 1
end

local pattern = '^' .. string.rep('[0-9a-f]', 16) .. ' '

local function is_versioned(text)
  return string.find(text, pattern) ~= nil
end

local function version_of(text)
  if is_versioned(text) then
    return string.sub(text, 1, 16)
  end
  return string.sub(redis.sha1hex(text), 1, 16)
end

-- ARGV: the number to add, the new version, the first number, the words of its expiry. Redis adds,
-- because its numbers have 64 bits, and Lua's have 53.
if op == 'increment' then
  local versioned = ARGV[3] ~= ''
  if stored then
    versioned = is_versioned(stored)
    if versioned then
      redis.call('SET', key, string.sub(stored, 18), 'KEEPTTL')
    end
    local result = redis.pcall('INCRBY', key, ARGV[2])
    if type(result) == 'table' then
      redis.call('SET', key, stored, 'KEEPTTL')
      return result
    end
  elseif ARGV[4] then
    redis.call('SET', key, unpack(ARGV, 4))
  else
    return false
  end
  local number = redis.call('GET', key)
  if versioned then
    redis.call('SET', key, ARGV[3] .. ' ' .. number, 'KEEPTTL')
  end
  return number
end

if op == 'get' then
  local value = stored
  if is_versioned(stored) then
    value = string.sub(stored, 18)
  end
  return { version_of(stored), value, redis.call('PTTL', key) }
end

-- ARGV: the new version, the text to prepend, the text to append. `enter` is for a queue, which only memlock
-- writes.
if op == 'extend' or op == 'enter' then
  local text = ARGV[3] .. stored .. ARGV[4]
  if op == 'enter' and not is_versioned(stored) then
    return redis.error_reply('FOREIGN')
  elseif is_versioned(stored) then
    text = ARGV[2] .. ' ' .. ARGV[3] .. string.sub(stored, 18) .. ARGV[4]
  end
  redis.call('SET', key, text, 'KEEPTTL')
  return 1
end

-- ARGV: the version that the item must have; for `set` also the new content, and the words of its
-- expiry.
if version_of(stored) ~= ARGV[2] then
  return 0
end
if op == 'delete' then
  redis.call('DEL', key)
  return 1
end
redis.call('SET', key, unpack(ARGV, 3))
return version_of(ARGV[3])
