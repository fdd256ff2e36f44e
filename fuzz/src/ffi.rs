//! The C boundary: its functions with any bytes and numbers, in any order that the header allows,
//! over stores in memory. Pointers are NULL or good, and handles too: fresh, used again, or
//! outliving the client they came from. The input is a program of calls.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{null, null_mut};
use std::sync::Once;

use super::input::Input;
use memlock::*;

static DEFAULT_CLIENT: Once = Once::new();

/// Handles that were given out and not taken back yet, each NULL at first.
struct Hands {
    clients: [*mut memlock_client; 2],
    locks: [*mut memlock_lock; 3],
    /// Under which name each was granted; what is there is locked.
    names: [Option<(usize, CString)>; 3],
    lists: [*mut memlock_list; 2],
    walks: [*mut memlock_walk; 2],
    waits: [*mut memlock_wait; 2],
    cancelled: HashSet<usize>,
}

pub fn run(data: &[u8]) {
    DEFAULT_CLIENT.call_once(|| {
        // SAFETY: a string of C.
        assert_eq!(unsafe { memlock_init(c"memory://default".as_ptr()) }, MEMLOCK_OK);
    });
    let mut input = Input(data);
    let mut hands = Hands {
        clients: [null_mut(); 2],
        locks: [null_mut(); 3],
        names: [None, None, None],
        lists: [null_mut(); 2],
        walks: [null_mut(); 2],
        waits: [null_mut(); 2],
        cancelled: HashSet::new(),
    };
    for (place, url) in [c"memory://one", c"memory://two"].into_iter().enumerate() {
        // SAFETY: a string of C, and a place for the handle.
        unsafe {
            assert_eq!(memlock_client_open(url.as_ptr(), &mut hands.clients[place]), MEMLOCK_OK)
        };
    }
    let mut steps = 0;
    while !input.is_over() && steps < 40 {
        steps += 1;
        let what = input.byte();
        let place = usize::from(what >> 7);
        match what & 31 {
            0..=6 => locking(what & 31, place, &mut hands, &mut input),
            7..=16 => listing(what & 31, place, &mut hands, &mut input),
            17..=21 => waiting(what & 31, place, &mut hands),
            22..=27 => bare(what & 31, &mut input),
            _ => at_large(what & 31, &mut input),
        }
    }
    close(&mut hands);
}

/// Some bytes up to the first NUL, as a string of C.
fn text(input: &mut Input<'_>) -> CString {
    let length = usize::from(input.byte() % 12);
    let bytes = input.bytes(length);
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}

/// NULL now and then.
fn or_null(text: &CString, input: &mut Input<'_>) -> *const c_char {
    if input.byte() > 240 { null() } else { text.as_ptr() }
}

/// A place for an answer, or NULL now and then.
fn place_or_null<T>(place: &mut T, input: &mut Input<'_>) -> *mut T {
    if input.byte() > 240 { null_mut() } else { place }
}

/// Every answer is one of the table, with its sentence; a bug is none of them.
fn answered(answer: c_int) -> c_int {
    assert_ne!(answer, MEMLOCK_INTERNAL, "{}", last_error());
    assert!((MEMLOCK_DEADLOCK..=MEMLOCK_RECOVERING).contains(&answer));
    assert_eq!(answer == MEMLOCK_OK, last_error().is_empty(), "{answer}: {}", last_error());
    answer
}

fn last_error() -> String {
    // SAFETY: never NULL, and ended by NUL.
    let sentence = unsafe { CStr::from_ptr(memlock_last_error()) };
    assert!(sentence.count_bytes() < 1024);
    sentence.to_str().expect("cut at a character's end").to_owned()
}

fn locking(what: u8, place: usize, hands: &mut Hands, input: &mut Input<'_>) {
    let slot = usize::from(input.byte() % 3);
    let lease = input.number() as i64;
    match what {
        0..=2 => lock(place, slot, lease, hands, input),
        3 => {
            let lock = std::mem::replace(&mut hands.locks[slot], null_mut());
            let was = hands.names[slot].take();
            // SAFETY: NULL, or a lock that is not used any more.
            let answer = answered(unsafe { memlock_unlock(lock) });
            assert_eq!(was.is_none(), answer == MEMLOCK_INVALID);
        }
        4 => {
            let (mut fence, mut remaining) = (0, -7);
            let lock = hands.locks[slot];
            // SAFETY: NULL, or a lock that is held; places for answers.
            let answers = unsafe {
                let _ = answered(memlock_lock_extend(lock, lease));
                [
                    memlock_lock_fence(lock, &mut fence),
                    memlock_lock_remaining_ms(lock, &mut remaining),
                ]
            };
            let expected = if lock.is_null() { MEMLOCK_INVALID } else { MEMLOCK_OK };
            assert_eq!(answers.map(answered), [expected; 2]);
            assert!(lock.is_null() || (fence > 0 && (0..=31_622_400_000).contains(&remaining)));
        }
        5 => {
            let name = text(input);
            // SAFETY: plain data may be all zeros.
            let mut owner: memlock_owner = unsafe { std::mem::zeroed() };
            // SAFETY: a client, a string or NULL, a place or NULL.
            let answer = answered(unsafe {
                memlock_mutex_owner(
                    hands.clients[place],
                    or_null(&name, input),
                    place_or_null(&mut owner, input),
                )
            });
            assert_ne!(answer, MEMLOCK_OK);
            // SAFETY: ended by NUL, as the header says.
            let token = unsafe { CStr::from_ptr(owner.token.as_ptr()) };
            assert_eq!(answer == MEMLOCK_BUSY, token.count_bytes() == 32);
        }
        _ => {
            let (name, token) = (text(input), text(input));
            // SAFETY: a client, and strings or NULL.
            let answer = answered(unsafe {
                memlock_mutex_force_unlock(
                    hands.clients[place],
                    or_null(&name, input),
                    token.as_ptr(),
                )
            });
            assert_ne!(answer, MEMLOCK_OK, "so short a token is nobody's");
        }
    }
}

fn lock(place: usize, slot: usize, lease: i64, hands: &mut Hands, input: &mut Input<'_>) {
    let name = text(input);
    let wait = hands.waits[usize::from(input.byte() % 2)];
    let is_held =
        hands.names.iter().flatten().any(|(client, held)| (*client, held) == (place, &name));
    // No thread releases it while this one waits.
    let wait_ms = match input.number() as i64 {
        -1 | 0.. if is_held => i64::from(input.byte() > 250),
        any => any,
    };
    let (given, mut lock) = (or_null(&name, input), null_mut());
    // Every third one.
    let lease = if lease % 3 == 0 { lease } else { 60_000 };
    // SAFETY: a client, a string or NULL, a handle or NULL, a place.
    let answer = answered(unsafe {
        memlock_mutex_lock_wait(hands.clients[place], given, lease, wait_ms, wait, &mut lock)
    });
    assert_eq!(answer == MEMLOCK_OK, !lock.is_null());
    let fit = !given.is_null()
        && !name.is_empty()
        && (1000..=31_622_400_000).contains(&lease)
        && wait_ms >= -1;
    assert!(fit || answer == MEMLOCK_INVALID);
    if answer == MEMLOCK_OK {
        assert!(!is_held || lease < 60_000 || hands.names.iter().flatten().count() > 0);
        if hands.locks[slot].is_null() {
            (hands.locks[slot], hands.names[slot]) = (lock, Some((place, name)));
        } else {
            // SAFETY: a lock that is not used any more.
            let answer = answered(unsafe { memlock_unlock(lock) });
            // A slow machine may take longer than a short lease.
            assert!(answer == MEMLOCK_OK || (answer == MEMLOCK_LOST && lease < 60_000));
        }
    }
}

fn listing(what: u8, place: usize, hands: &mut Hands, input: &mut Input<'_>) {
    let slot = usize::from(input.byte() % 2);
    let list = hands.lists[slot];
    let (key, mut id) = (input.chunk(), 77);
    let data = if key.is_empty() && input.byte() > 200 { null() } else { key.as_ptr().cast() };
    match what {
        7 | 8 => {
            let (name, duration, mut made) = (text(input), input.number() as i64, null_mut());
            let client = hands.clients[place];
            // SAFETY: a client, a string or NULL, a place.
            let answer = answered(unsafe {
                match what {
                    7 => memlock_list_open(client, or_null(&name, input), &mut made),
                    _ => memlock_list_set_up(
                        client,
                        or_null(&name, input),
                        duration.max(60_000),
                        &mut made,
                    ),
                }
            });
            assert_eq!([MEMLOCK_OK, MEMLOCK_EXISTS].contains(&answer), !made.is_null());
            hands.lists[slot] = made;
            // SAFETY: NULL, or a handle that is not used any more.
            unsafe { memlock_list_close(list) };
        }
        9 | 10 => {
            // SAFETY: NULL or a handle, NULL or readable bytes, NULL or a place.
            let answer = answered(unsafe {
                memlock_list_insert(list, data, key.len(), place_or_null(&mut id, input))
            });
            let mut again = 0;
            if [MEMLOCK_OK, MEMLOCK_DUPLICATE].contains(&answer) {
                // SAFETY: as above.
                let answer =
                    answered(unsafe { memlock_list_id(list, data, key.len(), &mut again) });
                assert!(answer == MEMLOCK_OK && (id == again || id == 77) && again > 0);
            }
        }
        11 => {
            let keys: Vec<memlock_bytes> = key
                .chunks(2)
                .map(|key| memlock_bytes { data: key.as_ptr().cast(), len: key.len() })
                .collect();
            let mut insertions = vec![memlock_insertion { id: 0, answer: -9 }; keys.len()];
            // SAFETY: NULL or a handle, as many keys as are there, and room for their answers.
            let answer = answered(unsafe {
                memlock_list_insert_many(list, keys.as_ptr(), keys.len(), insertions.as_mut_ptr())
            });
            let all = insertions
                .iter()
                .all(|one| one.id > 0 && [MEMLOCK_OK, MEMLOCK_DUPLICATE].contains(&one.answer));
            assert!(answer != MEMLOCK_OK || all);
        }
        12 => {
            let mut count = 0;
            // SAFETY: NULL or a handle, NULL or a place.
            answered(unsafe { memlock_list_count(list, place_or_null(&mut count, input)) });
        }
        13 => {
            // SAFETY: NULL or a handle.
            answered(unsafe { memlock_list_tear_down(list) });
        }
        14 => {
            let mut walk = null_mut();
            // SAFETY: NULL or a handle, a place.
            let answer = answered(unsafe { memlock_list_walk(list, &mut walk) });
            assert_eq!(answer == MEMLOCK_OK, !walk.is_null());
            let before = std::mem::replace(&mut hands.walks[slot], walk);
            // SAFETY: NULL, or a walk that is not used any more.
            unsafe { memlock_walk_close(before) };
        }
        15 => {
            // SAFETY: NULL or a handle, NULL or readable bytes, NULL or a place.
            answered(unsafe {
                memlock_list_id(list, data, key.len(), place_or_null(&mut id, input))
            });
        }
        _ => walk_on(hands.walks[slot]),
    }
}

fn walk_on(walk: *mut memlock_walk) {
    let mut last = 0;
    loop {
        let (mut id, mut key, mut len) = (0, null(), 0);
        // SAFETY: NULL or a walk, places for answers.
        let answer = answered(unsafe { memlock_walk_next(walk, &mut id, &mut key, &mut len) });
        if answer != MEMLOCK_OK || key.is_null() {
            return assert_eq!((id, len), (0, 0));
        }
        assert!(id > last && len > 0);
        last = id;
        // SAFETY: as many bytes as it says, until the next step.
        let key = unsafe { std::slice::from_raw_parts(key.cast::<u8>(), len) };
        std::hint::black_box(key.to_vec());
    }
}

fn waiting(what: u8, place: usize, hands: &mut Hands) {
    let wait = hands.waits[place];
    // SAFETY: NULL or handles that were not given back.
    unsafe {
        match what {
            17 => {
                let mut opened = null_mut();
                assert_eq!(
                    answered(memlock_wait_open(hands.clients[place], &mut opened)),
                    MEMLOCK_OK
                );
                hands.waits[place] = opened;
                memlock_wait_close(wait);
            }
            18 => {
                let expected = if wait.is_null() { MEMLOCK_INVALID } else { MEMLOCK_OK };
                assert_eq!(answered(memlock_wait_cancel(wait)), expected);
                assert_eq!(answered(memlock_wait_cancel(wait)), expected);
                hands.cancelled.insert(wait.addr());
            }
            19 => {
                assert_eq!(answered(memlock_client_cancel_waits(hands.clients[place])), MEMLOCK_OK)
            }
            20 => assert_eq!(answered(memlock_client_cancel_waits(null())), MEMLOCK_OK),
            _ => {
                memlock_wait_close(null_mut());
                memlock_client_close(null_mut());
                memlock_list_close(null_mut());
                memlock_walk_close(null_mut());
                assert_eq!(memlock_wait_open(null(), null_mut()), MEMLOCK_INVALID);
                assert_eq!(memlock_unlock(null_mut()), MEMLOCK_INVALID);
            }
        }
    }
}

/// The bare functions: what one thread holds it cannot wait for, so that none of them waits.
/// Nothing is left behind, since the default client outlives the input.
fn bare(what: u8, input: &mut Input<'_>) {
    let (name, key) = (text(input), text(input));
    let duration = input.number() as libc::time_t;
    let given = or_null(&name, input);
    // SAFETY: strings or NULL.
    unsafe {
        match what {
            22 => {
                let answer = answered(mutex_lock(given, duration.max(60)));
                let again =
                    if answer == MEMLOCK_OK { answered(mutex_lock(given, 60)) } else { answer };
                if answer == MEMLOCK_OK {
                    assert_eq!(again, MEMLOCK_DEADLOCK);
                    assert_eq!(answered(mutex_unlock(given)), MEMLOCK_OK);
                }
            }
            23 => {
                let answer = answered(mutex_lock_nonblock(given, duration));
                assert!(answer != MEMLOCK_OK || (1..=31_622_400).contains(&duration));
                if answer == MEMLOCK_OK {
                    let unlocked = answered(mutex_unlock(given));
                    assert!(unlocked == MEMLOCK_OK || (unlocked == MEMLOCK_LOST && duration < 60));
                    assert_eq!(answered(mutex_unlock(given)), MEMLOCK_NOT_HELD);
                }
            }
            24 => drop(answered(mutex_unlock(given))),
            25 => {
                if answered(distinct_list_set_up(given, duration)) == MEMLOCK_OK && duration > 60 {
                    let answers =
                        [(); 2].map(|()| answered(distinct_list_insert(given, key.as_ptr())));
                    let expected = if key.is_empty() {
                        [MEMLOCK_INVALID; 2]
                    } else {
                        [MEMLOCK_OK, MEMLOCK_DUPLICATE]
                    };
                    assert_eq!(answers, expected);
                }
                answered(distinct_list_tear_down(given));
            }
            26 => drop(answered(distinct_list_insert(given, or_null(&key, input)))),
            _ => drop(answered(distinct_list_tear_down(given))),
        }
    }
}

fn at_large(what: u8, input: &mut Input<'_>) {
    match what {
        28 | 29 => {
            let url = [&b"memcached://"[..], b"memory://", b""][usize::from(input.byte() % 3)];
            let end: Vec<u8> = input.chunk().iter().copied().filter(|&byte| byte != 0).collect();
            let url = CString::new([url, &end].concat()).unwrap_or_default();
            let mut client = null_mut();
            // SAFETY: a string or NULL, a place or NULL; then a client that is not used any more.
            unsafe {
                let answer = answered(memlock_client_open(
                    or_null(&url, input),
                    place_or_null(&mut client, input),
                ));
                assert_eq!(answer == MEMLOCK_OK, !client.is_null());
                memlock_client_close(client);
            }
        }
        30 => {
            // SAFETY: a string; there is a default client already.
            let answer = unsafe { memlock_init(c"memory://other".as_ptr()) };
            assert_eq!(answered(answer), MEMLOCK_CONFIG);
        }
        _ => {
            let number = input.number() as c_int;
            // SAFETY: never NULL, and ended by NUL.
            let (described, version) = unsafe {
                (CStr::from_ptr(memlock_describe(number)), CStr::from_ptr(memlock_version()))
            };
            assert!(described.to_bytes().ends_with(b".") && version.count_bytes() > 0);
        }
    }
}

/// Clients first: the handles that were opened through them go on working.
fn close(hands: &mut Hands) {
    // SAFETY: each is NULL or a handle that is not used any more.
    unsafe {
        hands.clients.into_iter().for_each(|client| memlock_client_close(client));
        for lock in hands.locks.into_iter().filter(|lock| !lock.is_null()) {
            let mut fence = 0;
            assert_eq!(answered(memlock_lock_fence(lock, &mut fence)), MEMLOCK_OK);
            answered(memlock_unlock(lock));
        }
        for walk in hands.walks {
            walk_on(walk);
            memlock_walk_close(walk);
        }
        for list in hands.lists {
            answered(memlock_list_tear_down(list));
            answered(memlock_list_tear_down(list));
            memlock_list_close(list);
        }
        for wait in hands.waits {
            answered(memlock_wait_cancel(wait));
            memlock_wait_close(wait);
        }
    }
}
