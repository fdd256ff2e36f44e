//! Servers that are down, die, come back empty, are too old, full, answer nonsense or not at all:
//! each gets its own answer and one clear sentence, and nothing hangs.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{
    Answer, Bound, Client, Error, ErrorKind, Extension, Insertion, Release, Request, Wait, Waited,
};
use memlock_tests::assert_safe;
use memlock_tests::doors::{Door, For, No, Rust, WaitingThread};
use memlock_tests::fake::{self, Behaviour};
use memlock_tests::launch::until;
use memlock_tests::proxy::{Fault, Proxy};
use memlock_tests::server::{Memcached, MemcachedText};
use memlock_tests::url;

use crate::bench::{KINDS, Kind, fill, fill_with};

const LEASE: Duration = Duration::from_secs(30);

fn door(url: &str) -> Rust {
    within("20s", url)
}

fn within(io_timeout: &str, url: &str) -> Rust {
    Rust::open(&url::with(url, &format!("io_timeout={io_timeout}&outage=1s"))).unwrap()
}

fn refused<T>(outcome: Result<T, No>) -> No {
    match outcome {
        Ok(_) => panic!("this must not be granted"),
        Err(no) => no,
    }
}

const UNREACHABLE: &[Answer] = &[Answer::Unreachable];
const UNKNOWN: &[Answer] = &[Answer::Unknown];
const PROTOCOL: &[Answer] = &[Answer::Protocol];

/// What a server does, the answers to a lock, to a list and to a look at the owner, and what is said.
type Case = (Behaviour, [&'static [Answer]; 3], &'static [&'static str]);

/// What a fake server makes of a lock, of a list and of a look at the owner, and what is said.
#[test]
fn each_nonsense_has_its_answer_and_a_sentence() {
    let garbage = |bytes: &[u8]| Behaviour::Garbage(bytes.to_vec());
    let either = &[Answer::Unknown, Answer::Unreachable];
    let cases: Vec<Case> = vec![
        (Behaviour::Version("1.6.12".to_owned()), [PROTOCOL; 3], &["1.6.12", "1.6.13"]),
        (Behaviour::Silent, [UNREACHABLE; 3], &[]),
        (Behaviour::Closes, [UNREACHABLE; 3], &[]),
        (garbage(b"HTTP/1.1 400 Bad Request\r\n\r\n"), [PROTOCOL; 3], &[]),
        (garbage(b"\0\0\0\0\r\n"), [PROTOCOL; 3], &[]),
        (garbage(b"\xff\xfe\n"), [PROTOCOL; 3], &[]),
        (garbage(b"-ERR unknown command\r\n"), [PROTOCOL; 3], &[]),
        // Reading changes nothing, so nothing is unknown.
        (Behaviour::HalfLine, [UNKNOWN, either, UNREACHABLE], &[]),
        (Behaviour::Drip, [UNKNOWN, either, UNREACHABLE], &[]),
        (Behaviour::EndlessLine, [PROTOCOL; 3], &[]),
        (Behaviour::EndlessStats, [PROTOCOL; 3], &[]),
        (Behaviour::HugeValue, [PROTOCOL; 3], &[]),
        // A reply to another request is never believed.
        (Behaviour::WrongOpaque, [PROTOCOL; 3], &["out of step"]),
    ];
    thread::scope(|scope| {
        for (behaviour, wanted, parts) in cases {
            scope.spawn(move || {
                let fake = fake::start(behaviour.clone());
                // Of these the end is never heard.
                let endless = [Behaviour::Silent, Behaviour::HalfLine, Behaviour::Drip];
                let patience = if endless.contains(&behaviour) { "3s" } else { "20s" };
                let door = within(patience, &fake.url());
                let answers = [
                    refused(door.lock(b"m", LEASE, For::Ever)),
                    refused(door.set_up_list(b"s", LEASE)),
                    refused(door.owner(b"m")),
                ];
                for (No { answer, sentence, .. }, wanted) in answers.iter().zip(wanted) {
                    let what = format!("{behaviour:?}: {answer:?}: {sentence}");
                    assert!(wanted.contains(answer), "{what}");
                    assert!(sentence.contains("127.0.0.1"), "it says which server: {what}");
                    assert!(sentence.ends_with(['.', '?', ')']), "a whole sentence: {what}");
                    assert!(parts.iter().all(|part| sentence.contains(part)), "{what}");
                }
            });
        }
    });
}

#[test]
fn a_server_that_refuses_in_words_is_quoted() {
    let fake = fake::start(Behaviour::ServerError);
    let no = refused(door(&fake.url()).lock(b"m", LEASE, For::Ever));
    assert_eq!(no.answer, Answer::Protocol);
    assert!(no.sentence.contains("out of memory storing object"), "{}", no.sentence);
}

/// Not after the outage that is tolerated otherwise.
#[test]
fn a_server_that_is_down_at_the_start_is_reported_at_once() {
    let server = Memcached::start();
    let door = Rust::open(&server.url()).unwrap();
    server.kill();
    for wait in [For::Never, For::Ever, For::AtMost(100 * LEASE)] {
        let no = refused(door.lock(b"m", LEASE, wait));
        assert_eq!(no.answer, Answer::Unreachable);
        assert!(no.sentence.contains("Is memcached running there?"), "{}", no.sentence);
    }
    assert_eq!(refused(door.set_up_list(b"s", LEASE)).answer, Answer::Unreachable);
    assert_eq!(refused(door.list(b"s").unwrap().insert(b"k")).answer, Answer::Unreachable);
    server.restart();
    door.lock(b"m", LEASE, For::Never).unwrap().release().unwrap();
}

#[test]
fn an_outage_of_the_url_is_tolerated_from_the_first_attempt_on() {
    let server = Memcached::start();
    let open = |outage: &str| Rust::open(&url::with(&server.url(), outage)).unwrap();
    let (briefly, long) = (open("outage=500ms"), open("outage=3600s"));
    server.kill();
    let no = refused(long.lock(b"m", LEASE, For::Never));
    assert_eq!(no.answer, Answer::Unreachable, "one attempt is one attempt");
    for wait in [For::Ever, For::AtMost(100 * LEASE)] {
        let began = Instant::now();
        assert_eq!(refused(briefly.lock(b"m", LEASE, wait)).answer, Answer::Unreachable);
        assert!(began.elapsed() >= Duration::from_millis(500), "{wait:?}");
    }
    let limit = Duration::from_millis(300);
    let no = refused(long.lock(b"m", LEASE, For::AtMost(limit)));
    assert_eq!(no.answer, Answer::Unreachable, "it never answered: {no:?}");
    let client = Client::connect(&url::with(&server.url(), "outage=3600s")).unwrap();
    let (counter, wait) = (client.counter("c").unwrap(), Wait::at_most(limit));
    let retries: &dyn Fn() -> memlock_core::Result<Waited<()>> =
        &|| counter.acquire_retrying(&wait);
    for acquire in [retries, &|| counter.acquire_parked(0, &wait)] {
        let began = Instant::now();
        assert_eq!(acquire().unwrap_err().kind(), ErrorKind::Unreachable);
        assert!(began.elapsed() >= limit);
    }
    assert_eq!(counter.try_acquire().unwrap_err().kind(), ErrorKind::Unreachable);
    thread::scope(|scope| {
        let waits = scope.spawn(|| long.lock(b"m", LEASE, For::Ever).map(drop));
        thread::sleep(limit);
        server.restart();
        assert!(waits.join().unwrap().is_ok());
    });
}

#[test]
fn a_wait_for_ones_own_lock_is_refused_once_the_server_answers() {
    let server = Memcached::start();
    let client =
        Client::connect(&url::with(&server.url(), "io_timeout=200ms&outage=3600s")).unwrap();
    let (mutex, semaphore) =
        (client.mutex("m", LEASE).unwrap(), client.semaphore("s", 1, LEASE).unwrap());
    let (lock, permit) = (mutex.lock().unwrap(), semaphore.acquire().unwrap());
    let _bound = [lock.token(), permit.token()].map(Bound::to_this_thread);
    let resume = |_: &Error| server.resume();
    let wait = Wait::FOREVER.on_outage(&resume);
    server.pause();
    assert_eq!(mutex.lock_with(&wait).unwrap_err().kind(), ErrorKind::Deadlock);
    let lock = thread::scope(|scope| {
        // Behind another thread, which alone uses the server.
        let thread = WaitingThread::default();
        let (same, mutex, server) = (thread.clone(), &mutex, &server);
        let first = scope.spawn(move || {
            same.is_this_one();
            drop(mutex.lock_with(&Wait::FOREVER.on_outage(&|_| server.resume())).unwrap());
        });
        until("it waits", || thread.is_asleep());
        server.pause();
        assert_eq!(mutex.lock().unwrap_err().kind(), ErrorKind::Deadlock);
        drop(lock);
        first.join().unwrap();
        mutex.lock().unwrap()
    });
    server.pause();
    let error = semaphore.acquire_with(Request::default(), &wait).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    let mut plain = server.plain();
    for queue in ["lock:m%wait", "semaphore:s%wait"] {
        assert!(plain.get(queue).is_none_or(|entries| entries.is_empty()), "{queue}");
    }
    assert!(lock.check().unwrap() && permit.check().unwrap());
}

#[test]
fn an_unknown_host_is_unreachable() {
    let no = refused(door("memcached://no-such-host.invalid").lock(b"m", LEASE, For::Ever));
    assert_eq!(no.answer, Answer::Unreachable);
    assert!(no.sentence.contains("no-such-host.invalid"), "{}", no.sentence);
}

/// The cas ids of both lives begin at the same numbers.
#[test]
fn what_is_gone_with_a_server_or_flushed_is_lost_and_the_next_holders_is_left_alone() {
    for kind in KINDS {
        for flushed in [false, true] {
            let server = Memcached::start();
            let connect = || Client::connect(&server.url()).unwrap();
            let (old, new) = (connect(), connect());
            let held = || kind.hold(&old, "m", 2 * LEASE);
            let (mut extended, mut released) = (held(), kind.hold(&old, "n", LEASE));
            let mut list = old.distinct_list("s").unwrap();
            let _ = list.set_up(LEASE).unwrap();
            if flushed {
                server.plain().flush_all();
            } else {
                server.kill();
                let unreachable = |error: memlock_core::Error| {
                    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
                };
                // A connection that was just used is not checked before it is used again.
                until("its end is noticed", || {
                    kind.attempt(&old, "other", LEASE)
                        .is_err_and(|error| error.kind() == ErrorKind::Unreachable)
                });
                unreachable(extended.extend(LEASE).unwrap_err());
                assert!(extended.remaining() > LEASE, "our lease runs on, on our own clock");
                unreachable(released.release().unwrap_err());
                server.restart();
            }
            let mut next = kind.hold(&new, "m", LEASE);
            let mut other = kind.hold(&new, "n", LEASE);
            assert_eq!(extended.extend(LEASE).unwrap(), Extension::Lost, "{kind:?}");
            assert_eq!(released.release().unwrap(), Release::Lost, "{kind:?}");
            assert_eq!(list.insert("k").unwrap(), None);
            drop(extended);
            for name in ["m", "n"] {
                let again = kind.attempt(&old, name, LEASE).unwrap();
                assert_safe!(again.is_none(), "{kind:?}: the new holder's was released");
            }
            assert_eq!(next.release().unwrap(), Release::Released);
            assert_eq!(other.release().unwrap(), Release::Released);
        }
    }
}

#[test]
fn a_waiter_gives_up_after_the_tolerated_outage() {
    let server = Memcached::start();
    let (one, two) = (door(&server.url()), door(&server.url()));
    let held = one.lock(b"m", LEASE, For::Never).unwrap();
    let (done, is_done) = mpsc::channel();
    let before = server.commands();
    thread::spawn(move || done.send(refused(two.lock(b"m", LEASE, For::Ever))).unwrap());
    until("it waits", || server.commands() >= before + 3);
    let began = Instant::now();
    server.kill();
    let no = is_done.recv_timeout(2 * LEASE).expect("it does not give up");
    assert!(matches!(no.answer, Answer::Unreachable | Answer::Unknown), "{no:?}");
    assert!(began.elapsed() >= Duration::from_millis(900), "the outage of 1 s is ridden out");
    assert!(held.release().is_err());
}

#[test]
fn a_server_without_cas_is_refused_with_the_flag_that_does_it() {
    let server = Memcached::with_args(&["-C"]);
    let no = refused(door(&server.url()).lock(b"m", LEASE, For::Never));
    assert_eq!(no.answer, Answer::Protocol);
    assert!(no.sentence.contains("-C"), "{}", no.sentence);
    assert_eq!(server.plain().get("lock:m"), None, "nothing was stored");
}

/// Neither for another's attempt, nor for waiters or the holder's own extension, for which there is
/// no room.
#[test]
fn a_full_server_takes_nobodys_lock_or_permits_away() {
    for flags in [&["-M", "-m", "2"][..], &["-m", "2", "-o", "temporary_ttl=3600"]] {
        let server = Memcached::with_args(flags);
        let connect = || Client::connect(&server.url()).unwrap();
        // Filling it takes some time, and nothing of it may end by then.
        let (one, other, long) = (connect(), connect(), 20 * LEASE);
        // A semaphore is kept for a day, so the second server may evict it.
        let kinds = if flags[0] == "-M" { &KINDS[..] } else { &[Kind::Lock] };
        let mut held: Vec<_> =
            kinds.iter().map(|&kind| (kind, kind.hold(&one, "m", long))).collect();
        // The queue can be written; after that there is no room for anything, however small.
        assert!(server.plain().set("lock:m%wait", "", 0));
        fill(&server);
        let full = door(&server.url());
        let no = (0..100_000).find_map(|number| {
            let more = full.lock(format!("more {number}").as_bytes(), long, For::Never);
            more.map(std::mem::forget).err()
        });
        let no = no.expect("it is full");
        assert_eq!(no.answer, Answer::Protocol, "full is not busy: {no:?}");
        assert!(no.sentence.contains("out of memory"), "{}", no.sentence);
        for (kind, held) in &mut held {
            for _ in 0..3 {
                // Busy, and not full: that it is held is what the caller asks.
                let attempt = kind.attempt(&other, "m", LEASE);
                let is_over = held.remaining().is_zero();
                assert_safe!(!matches!(attempt, Ok(Some(_))) || is_over, "{kind:?}: held twice");
                let error = attempt.map(|held| assert!(held.is_none())).err();
                assert!(error.is_none() || is_over, "{kind:?}: {error:?}");
            }
            let mutex = other.mutex("m", LEASE).unwrap();
            let waited = mutex.lock_for(Duration::from_millis(300));
            let is_over = held.remaining().is_zero();
            assert_safe!(!matches!(waited, Ok(Some(_))) || is_over, "held twice");
            assert!(matches!(waited, Ok(None)) || is_over, "it does not wait: {waited:?}");
            // An extension for which there is no room leaves the lease that there is.
            match held.extend(long) {
                Ok(extended) => assert_eq!(extended, Extension::Extended),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Protocol, "{error}"),
            }
            assert!(held.check().unwrap(), "{kind:?}");
        }
        for (kind, mut held) in held {
            // The record of a semaphore without it is smaller, and may find room.
            match held.release() {
                Ok(released) => assert_eq!(released, Release::Released),
                Err(error) => {
                    assert_eq!((kind, error.kind()), (Kind::Permit, ErrorKind::Protocol));
                }
            }
        }
    }
}

/// The server refuses the id's item, which has the key, and stores the key's item, which is small.
#[test]
fn a_full_server_has_no_key_in_a_list_that_a_walk_does_not_find() {
    let server = Memcached::with_args(&["-M", "-m", "16"]);
    let mut list = Client::connect(&server.url()).unwrap().distinct_list("s").unwrap();
    let _ = list.set_up(20 * LEASE).unwrap();
    assert_eq!(list.insert("first").unwrap(), Some(Insertion::First(1)));
    let large = fill_with(&server, 40_050);
    let key = "k".repeat(40_000);
    let error = list.insert(&key).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(error.to_string().contains("out of memory"), "{error}");
    assert_eq!(list.contains(&key).unwrap(), Some(false));
    assert!(server.plain().delete(&large));
    let told = list.insert(&key).unwrap().unwrap();
    assert!(matches!(told, Insertion::First(_)), "{told:?}");
    let walked: Vec<_> = list.entries().unwrap().unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(walked, [(1, b"first".to_vec()), (told.id(), key.into_bytes())]);
}

#[test]
fn a_server_without_room_for_connections_says_so() {
    let server = Memcached::with_args(&["-c", "64"]);
    // The connection that saw it start counts until a worker of the server has noticed its end: if
    // that were after the last one below was refused, there would be room for one more.
    let mut first = server.plain();
    until("it is alone", || first.stats()["curr_connections"] == "1");
    let connect = |_| MemcachedText::try_connect(&server.address()).ok();
    let taken: Vec<_> = (0..80).filter_map(connect).collect();
    let no = refused(door(&server.url()).lock(b"m", LEASE, For::Never));
    assert_eq!(no.answer, Answer::Unreachable, "{}", no.sentence);
    drop((first, taken));
}

#[test]
fn one_dead_server_of_several_does_not_hide_the_others() {
    let (one, two) = (Memcached::start(), Memcached::start());
    let url = format!("memcached://{},{}", one.address(), two.address());
    let door = Rust::open(&url::patient(&url)).unwrap();
    two.kill();
    let granted = (0..60).filter(|number| {
        match door.lock(format!("{number}").as_bytes(), LEASE, For::Never) {
            Ok(held) => held.release().is_ok(),
            Err(no) => {
                assert_eq!(no.answer, Answer::Unreachable);
                assert!(no.sentence.contains(&two.address()), "it says which one: {}", no.sentence);
                false
            }
        }
    });
    let granted = granted.count();
    assert!((10..50).contains(&granted), "{granted} of 60: never another server's");
}

/// Such a server tells the version only when it is asked for it; others may write into the item
/// before that.
#[test]
fn a_waiters_note_between_a_grant_and_its_version_is_not_overlooked() {
    let server = Memcached::with_args(&["-M"]);
    let proxy = Proxy::start(server.address());
    proxy.decide(|bytes| {
        let look = bytes.windows(4).position(|four| four == b"\nmg ")?;
        bytes.starts_with(b"add lock:m ").then_some(Fault::HoldRest(look + 1))
    });
    let slow = Rust::open(&format!("{}?io_timeout=60s", proxy.url())).unwrap();
    let quick = Rust::open(&server.url()).unwrap();
    let (holding, waiter) = (
        thread::spawn(move || slow.lock(b"m", LEASE, For::Ever).unwrap()),
        WaitingThread::default(),
    );
    until("it is held", || quick.owner(b"m").unwrap().is_some());
    let this = waiter.clone();
    let waiting = thread::spawn(move || {
        this.is_this_one();
        quick.lock(b"m", LEASE, For::Ever).unwrap().release().unwrap();
    });
    until("another waits", || waiter.is_asleep());
    assert_eq!(proxy.hits(), 1);
    proxy.clear_rules();
    holding.join().unwrap().release().unwrap();
    waiting.join().unwrap();
}
