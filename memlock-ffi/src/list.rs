//! Distinct lists by handle.

use std::ffi::{c_char, c_int};

use memlock_core::distinct_list::Entries;
use memlock_core::{Answer, DistinctList};

use crate::boundary::{
    bytes, enter, give, invalid, lent, lent_mut, millis, put, quietly, take_back, text,
};
use crate::client::memlock_client;

/// A distinct list. Not thread-safe: use a handle from one thread at a time.
pub struct memlock_list(pub(crate) DistinctList);

/// An iteration over the keys of a list. Not thread-safe: use it from one thread at a time.
pub struct memlock_walk {
    entries: Entries,
    /// The key that was returned last. C reads it until the next step.
    current: Vec<u8>,
}

/// A byte string that the caller owns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memlock_bytes {
    /// The first byte; not NULL.
    pub data: *const c_char,
    /// The number of bytes.
    pub len: usize,
}

/// The result of one insert.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memlock_insertion {
    /// The id of the key, from 1 up. All callers get the same id for a key.
    pub id: u64,
    /// MEMLOCK_OK when this insert was the first, MEMLOCK_DUPLICATE when the key was already in the
    /// list.
    pub answer: i32,
}

/// Makes a handle of the session `session` without setting it up. Sends nothing. The handle refers
/// to whatever session of that name exists at the time of each call.
///
/// Returns MEMLOCK_OK, or MEMLOCK_INVALID and NULL in *list. To be closed by memlock_list_close().
/// Thread-safe.
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

/// Sets up the session `session`, or joins it, and makes a handle that belongs to this particular
/// session: once it is torn down, the inserts of the handle are refused even if another session of
/// the same name is set up. `duration_ms` is the lifetime of the session and all its keys: 1000 to
/// 31622400000 (366 days), counted from the first set-up.
///
/// Returns MEMLOCK_OK when the session is new, and MEMLOCK_EXISTS when it already existed: *list is
/// a handle in both cases, to be closed by memlock_list_close(). Otherwise MEMLOCK_INVALID,
/// MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN or MEMLOCK_PROTOCOL, and NULL in *list. Thread-safe.
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
        let set_up = opened.set_up(millis(duration_ms)?)?;
        let report = opened.report(set_up);
        // SAFETY: the caller's promise.
        unsafe { put(list, give(memlock_list(opened)), "list") }?;
        Ok(report)
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

/// Closes a handle. The session is not affected. NULL is allowed.
///
/// # Safety
/// `list` is NULL or a handle that is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_list_close(list: *mut memlock_list) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take_back(list) }));
}

/// Inserts the `len` bytes at `key` (1 to 65536, NUL bytes allowed). Returns MEMLOCK_OK to exactly
/// one of all callers that insert the same key, and MEMLOCK_DUPLICATE to the others; *id is the id
/// of the key for all of them. Returns MEMLOCK_NOT_FOUND when there is no such session. Three round
/// trips for a new key, one for a duplicate. `id` may be NULL. After MEMLOCK_UNKNOWN the key may or
/// may not be in the list; inserting it again is safe.
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
        Ok(list.0.report(insertion))
    })
}

/// Inserts `count` keys, and stores the result of each in `insertions`, in the same order. Three
/// round trips for each 1,000 keys, and one more if some of them are duplicates. Returns
/// MEMLOCK_OK, or MEMLOCK_NOT_FOUND when there is no such session. On a failure nothing is written
/// to `insertions`, and some of the keys may be in the list.
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
                "An argument is NULL or too large: pass valid pointers for \"keys\" and \
                 \"insertions\", and the number of keys for \"count\".",
            ));
        }
        // SAFETY: not NULL, a possible count, and the rest is the caller's promise.
        let given = unsafe { std::slice::from_raw_parts(keys, count) };
        // SAFETY: the caller's promise.
        let given = given.iter().map(|key| unsafe { bytes(key.data, key.len, "key") });
        let given = given.collect::<memlock_core::Result<Vec<&[u8]>>>()?;
        let Some(done) = list.0.insert_many(&given)? else { return Ok(list.0.report_not_found()) };
        for (index, insertion) in done.into_iter().enumerate() {
            let known =
                memlock_insertion { id: insertion.id(), answer: Answer::from(insertion).code() };
            // SAFETY: `insertions` has room for `count` entries, and each key has one answer.
            unsafe { insertions.add(index).write(known) };
        }
        Ok(Answer::Ok.into())
    })
}

/// Stores the id of a key in *id; 0 when the key is not in the list. Returns MEMLOCK_NOT_FOUND when
/// there is no such session. One round trip.
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

/// Stores the number of assigned ids in *count: the number of keys, plus one for each insert that
/// was interrupted by the death of its process. Returns MEMLOCK_NOT_FOUND when there is no such
/// session. One round trip.
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

/// Ends the session for all processes, in one atomic step. Returns MEMLOCK_OK, or MEMLOCK_NOT_FOUND
/// when there was no session, or another one than this handle has set up. The handle must still be
/// closed.
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

/// Begins an iteration over the keys that are in the list now, in the order of their ids. Returns
/// MEMLOCK_NOT_FOUND when there is no such session. The iteration is ended by memlock_walk_close(),
/// and may outlive the list handle.
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

/// Stores the next key of an iteration in *id, *key and *len. At the end *key is NULL, and the
/// answer is MEMLOCK_OK too. The key is not NUL-terminated, and is valid until the next call with
/// this iteration. Returns MEMLOCK_NOT_FOUND when the session ended during the iteration. Two round
/// trips for each 256 keys.
///
/// # Safety
/// `walk` is NULL or an iteration; the other pointers are NULL or writable.
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

/// Ends an iteration. NULL is allowed.
///
/// # Safety
/// `walk` is NULL or an iteration that is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_walk_close(walk: *mut memlock_walk) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take_back(walk) }));
}
