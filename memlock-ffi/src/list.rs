//! The distinct list by handle.

use std::ffi::{c_char, c_int};

use memlock_core::distinct::Entries;
use memlock_core::{Answer, DistinctList};

use crate::boundary::{
    bytes, enter, give, invalid, lent, lent_mut, millis, put, quietly, take_back, text,
};
use crate::client::memlock_client;

/// A distinct list. Use it from one thread at a time.
pub struct memlock_list(pub(crate) DistinctList);

/// A walk through a list. Use it from one thread at a time.
pub struct memlock_walk {
    entries: Entries,
    /// The key that was handed out last; C looks at it until the next step.
    current: Vec<u8>,
}

/// Some bytes that the caller keeps.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memlock_bytes {
    /// Where they are; not NULL.
    pub data: *const c_char,
    /// How many there are.
    pub len: usize,
}

/// What became of one key.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memlock_insertion {
    /// The key's id, from 1 up: the same whoever asks.
    pub id: u64,
    /// MEMLOCK_OK when we were first, MEMLOCK_DUPLICATE when it was in the list already.
    pub answer: i32,
}

/// Makes a handle on the session `session` without setting it up. Nothing is sent. It follows
/// whatever session of that name there is.
///
/// # Safety
/// `client` is NULL or an open client, `session` is NULL or a NUL-terminated string, `list` is NULL
/// or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_list_open(
    client: *const memlock_client,
    session: *const c_char,
    list: *mut *mut memlock_list,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let opened = unsafe { named(client, session, list) }?;
        // SAFETY: the caller's promise.
        unsafe { put(list, give(memlock_list(opened)), "list") }?;
        Ok(Answer::Ok)
    })
}

/// Sets up the session `session`, or joins it, and makes a handle that belongs to that very
/// session: once it is torn down, the handle's inserts are refused even if somebody sets up another
/// of the same name. `duration_ms`: how long the session and all its keys live, 1000 to 31622400000
/// (366 days), counted from the first set-up. MEMLOCK_OK when it is new, MEMLOCK_EXISTS when it was
/// there: *list is a handle either way. On failure *list is NULL.
///
/// # Safety
/// `client` is NULL or an open client, `session` is NULL or a NUL-terminated string, `list` is NULL
/// or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_list_set_up(
    client: *const memlock_client,
    session: *const c_char,
    duration_ms: i64,
    list: *mut *mut memlock_list,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let mut opened = unsafe { named(client, session, list) }?;
        let answer = Answer::from(opened.set_up(millis(duration_ms)?)?);
        // SAFETY: the caller's promise.
        unsafe { put(list, give(memlock_list(opened)), "list") }?;
        Ok(answer)
    })
}

/// # Safety
/// As [`memlock_list_open`].
unsafe fn named(
    client: *const memlock_client,
    session: *const c_char,
    list: *mut *mut memlock_list,
) -> memlock_core::Result<DistinctList> {
    // SAFETY: the caller's promise.
    unsafe { put(list, std::ptr::null_mut(), "list") }?;
    // SAFETY: as above.
    let (client, session) = unsafe { (lent(client, "client")?, text(session, "session")?) };
    client.core.distinct_list(session)
}

/// Gives a handle back. The session goes on. NULL is allowed.
///
/// # Safety
/// `list` is NULL or a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_list_close(list: *mut memlock_list) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take_back(list) }));
}

/// Inserts `len` bytes at `key` (1 to 65536, NUL bytes welcome): MEMLOCK_OK for exactly one of all
/// who insert it, MEMLOCK_DUPLICATE for the others, with the key's id in *id for all of them;
/// MEMLOCK_NOT_FOUND when there is no such session. Three round trips for a new key, one for a
/// duplicate. `id` may be NULL. After MEMLOCK_UNKNOWN the key may be in the list or not; inserting
/// it again is safe.
///
/// # Safety
/// `list` is NULL or a handle, `key` is NULL or `len` readable bytes, `id` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_list_insert(
    list: *mut memlock_list,
    key: *const c_char,
    len: usize,
    id: *mut u64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let (list, key) = unsafe { (lent_mut(list, "list")?, bytes(key, len, "key")?) };
        let Some(insertion) = list.0.insert(key)? else { return Ok(list.0.report_not_found()) };
        if !id.is_null() {
            // SAFETY: the caller's promise.
            unsafe { put(id, insertion.id(), "id") }?;
        }
        Ok(Answer::from(insertion).into())
    })
}

/// Inserts `count` keys, and answers for each in `insertions`, in their order. Three round trips
/// for each 1,000 keys, and one more if some of them are duplicates. Answers MEMLOCK_OK, or
/// MEMLOCK_NOT_FOUND when there is no such session. On a failure nothing is written to
/// `insertions`, and some of the keys may be in the list.
///
/// # Safety
/// `list` is NULL or a handle, `keys` is NULL or `count` readable entries, `insertions` is NULL or
/// has room for `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_list_insert_many(
    list: *mut memlock_list,
    keys: *const memlock_bytes,
    count: usize,
    insertions: *mut memlock_insertion,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let list = unsafe { lent_mut(list, "list") }?;
        if count == 0 {
            return Ok(Answer::Ok.into());
        }
        if keys.is_null()
            || insertions.is_null()
            || count > isize::MAX as usize / size_of::<memlock_bytes>()
        {
            return Err(invalid(
                "The keys or the insertions are NULL, or their count is not possible.",
            ));
        }
        // SAFETY: not NULL, a possible count, and the rest is the caller's promise.
        let given = unsafe { std::slice::from_raw_parts(keys, count) };
        // SAFETY: the caller's promise.
        let given = given.iter().map(|key| unsafe { bytes(key.data, key.len, "key") });
        let given = given.collect::<memlock_core::Result<Vec<&[u8]>>>()?;
        let Some(done) = list.0.insert_many(&given)? else { return Ok(list.0.report_not_found()) };
        for (place, insertion) in done.into_iter().enumerate() {
            let known =
                memlock_insertion { id: insertion.id(), answer: Answer::from(insertion).code() };
            // SAFETY: there is room for `count`, and as many answers as keys.
            unsafe { insertions.add(place).write(known) };
        }
        Ok(Answer::Ok.into())
    })
}

/// The id of a key in *id; 0 when the key is not in the list. MEMLOCK_NOT_FOUND when there is no
/// such session. One round trip.
///
/// # Safety
/// `list` is NULL or a handle, `key` is NULL or `len` readable bytes, `id` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_list_id(
    list: *mut memlock_list,
    key: *const c_char,
    len: usize,
    id: *mut u64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let (list, key) = unsafe { (lent_mut(list, "list")?, bytes(key, len, "key")?) };
        let Some(found) = list.0.id(key)? else { return Ok(list.0.report_not_found()) };
        // SAFETY: the caller's promise.
        unsafe { put(id, found.unwrap_or(0), "id") }?;
        Ok(Answer::Ok.into())
    })
}

/// How many ids were given out in *count: the number of keys, plus one for every inserter that died
/// half-way. MEMLOCK_NOT_FOUND when there is no such session. One round trip.
///
/// # Safety
/// `list` is NULL or a handle, `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_list_count(
    list: *mut memlock_list,
    count: *mut u64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let list = &mut unsafe { lent_mut(list, "list") }?.0;
        let Some(found) = list.count()? else { return Ok(list.report_not_found()) };
        // SAFETY: the caller's promise.
        unsafe { put(count, found, "count") }?;
        Ok(Answer::Ok.into())
    })
}

/// Ends the session for everybody, in one atomic step: MEMLOCK_OK, or MEMLOCK_NOT_FOUND when there
/// was none, or another one than this handle set up. The handle stays, to be closed.
///
/// # Safety
/// `list` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_list_tear_down(list: *mut memlock_list) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let list = &mut unsafe { lent_mut(list, "list") }?.0;
        Ok(if list.tear_down()? { Answer::Ok.into() } else { list.report_not_found() })
    })
}

/// Begins a walk through the keys that are in the list now, in the order of their ids.
/// MEMLOCK_NOT_FOUND when there is no such session. The list may be closed before the walk.
///
/// # Safety
/// `list` is NULL or a handle, `walk` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_list_walk(
    list: *mut memlock_list,
    walk: *mut *mut memlock_walk,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { put(walk, std::ptr::null_mut(), "walk") }?;
        // SAFETY: the caller's promise.
        let list = &mut unsafe { lent_mut(list, "list") }?.0;
        let Some(entries) = list.entries()? else { return Ok(list.report_not_found()) };
        // SAFETY: the caller's promise.
        unsafe { put(walk, give(memlock_walk { entries, current: Vec::new() }), "walk") }?;
        Ok(Answer::Ok.into())
    })
}

/// The next key of a walk: *id, *key and *len; at the end *key is NULL and the answer is MEMLOCK_OK
/// too. The key is valid until the next call on this walk and has no NUL at its end.
/// MEMLOCK_NOT_FOUND when the session ended during the walk. Two round trips for each 256 keys.
///
/// # Safety
/// `walk` is NULL or a walk; the others are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_walk_next(
    walk: *mut memlock_walk,
    id: *mut u64,
    key: *mut *const c_char,
    len: *mut usize,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            put(id, 0, "id")?;
            put(key, std::ptr::null(), "key")?;
            put(len, 0, "len")?;
        }
        // SAFETY: the caller's promise.
        let walk = unsafe { lent_mut(walk, "walk") }?;
        let Some(entry) = walk.entries.next() else { return Ok(Answer::Ok) };
        let (number, name) = entry?;
        walk.current = name;
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            put(id, number, "id")?;
            put(key, walk.current.as_ptr().cast(), "key")?;
            put(len, walk.current.len(), "len")?;
        }
        Ok(Answer::Ok)
    })
}

/// Ends a walk. NULL is allowed.
///
/// # Safety
/// `walk` is NULL or a walk that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_walk_close(walk: *mut memlock_walk) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take_back(walk) }));
}
