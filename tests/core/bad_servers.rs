//! Servers that are down, die, come back empty, are too old, answer nonsense or not at all: each
//! gets its own answer and one clear sentence, and nothing hangs.

use std::thread;
use std::time::{Duration, Instant};

use memlock_core::Answer;
use memlock_tests::assert_safe;
use memlock_tests::doors::{Door, For, No, Rust};
use memlock_tests::fake::{Behaviour, Fake};
use memlock_tests::proxy::{Fault, Proxy};
use memlock_tests::server::Memcached;
use memlock_tests::stopwatch::Stopwatch;

const LEASE: Duration = Duration::from_secs(30);

fn door(url: &str) -> Rust {
    Rust::open(&format!("{url}?io_timeout=300ms&connect_timeout=300ms&outage=1s")).unwrap()
}

fn refused<T>(outcome: Result<T, No>) -> No {
    match outcome {
        Ok(_) => panic!("this must not be granted"),
        Err(no) => no,
    }
}

/// What a fake server makes of a lock, an insert and a look at the owner.
fn meet(behaviour: Behaviour) -> [No; 3] {
    let fake = Fake::start(behaviour);
    let door = door(&fake.url());
    let watch = Stopwatch::start();
    let answers = [
        refused(door.lock(b"m", LEASE, For::Ever)),
        refused(door.set_up_list(b"s", LEASE)),
        refused(door.owner(b"m")),
    ];
    assert!(watch.elapsed() < Duration::from_secs(20), "nothing hangs");
    for answer in &answers {
        assert!(answer.sentence.contains("127.0.0.1"), "it says which server: {}", answer.sentence);
        assert!(
            answer.sentence.ends_with(['.', '?', ')']),
            "a whole sentence: {}",
            answer.sentence
        );
    }
    answers
}

#[test]
fn a_server_that_is_down_at_the_start_is_reported_at_once() {
    let server = Memcached::start();
    let door = door(&server.url());
    server.kill();
    let watch = Stopwatch::start();
    for wait in [For::Never, For::Ever, For::AtMost(LEASE)] {
        let no = refused(door.lock(b"m", LEASE, wait));
        assert_eq!(no.answer, Answer::Unreachable);
        assert!(no.sentence.contains("Is memcached running there?"), "{}", no.sentence);
    }
    assert_eq!(refused(door.set_up_list(b"s", LEASE)).answer, Answer::Unreachable);
    assert_eq!(refused(door.list(b"s").unwrap().insert(b"k")).answer, Answer::Unreachable);
    assert!(watch.elapsed() < Duration::from_secs(2));
    server.restart();
    door.lock(b"m", LEASE, For::Never).unwrap().release().unwrap();
}

#[test]
fn an_unknown_host_is_unreachable() {
    let no = refused(door("memcached://no-such-host.invalid").lock(b"m", LEASE, For::Ever));
    assert_eq!(no.answer, Answer::Unreachable);
    assert!(no.sentence.contains("no-such-host.invalid"), "{}", no.sentence);
}

#[test]
fn a_server_that_dies_while_we_hold_is_reported_at_unlock() {
    let server = Memcached::start();
    let door = door(&server.url());
    let mut held = door.lock(b"m", LEASE, For::Never).unwrap();
    server.kill();
    thread::sleep(Duration::from_millis(150));
    assert_eq!(held.extend(LEASE).unwrap_err().answer, Answer::Unreachable);
    assert!(held.remaining() > Duration::from_secs(25), "our lease runs on, on our own clock");
    assert_eq!(held.release().unwrap_err().answer, Answer::Unreachable);
}

#[test]
fn a_server_that_comes_back_empty_has_lost_our_lock() {
    let server = Memcached::start();
    let door = door(&server.url());
    let mut one = door.lock(b"m", LEASE, For::Never).unwrap();
    let two = door.lock(b"n", LEASE, For::Never).unwrap();
    let (_, mut list) = door.set_up_list(b"s", LEASE).unwrap();
    server.kill();
    server.restart();
    assert_eq!(one.extend(LEASE).unwrap_err().answer, Answer::Lost);
    assert_eq!(two.release().unwrap_err().answer, Answer::Lost);
    assert_eq!(list.insert(b"k").unwrap_err().answer, Answer::NotFound);
}

#[test]
fn an_old_holder_leaves_the_new_holders_lock_alone_after_a_restart() {
    for pause in [Duration::ZERO, Duration::from_millis(300)] {
        let server = Memcached::start();
        let (old, new) = (door(&server.url()), door(&server.url()));
        let held = old.lock(b"m", LEASE, For::Never).unwrap();
        server.kill();
        server.restart();
        // The cas ids of both lives begin at the same numbers.
        let next = new.lock(b"m", LEASE, For::Never).unwrap();
        thread::sleep(pause);
        assert_eq!(held.release().unwrap_err().answer, Answer::Lost);
        let again = old.lock(b"m", LEASE, For::Never);
        assert_safe!(again.is_err(), "the new holder's lock was released");
        assert_eq!(refused(again).answer, Answer::Busy);
        next.release().unwrap();
    }
}

#[test]
fn a_flush_loses_the_lock_and_the_loser_is_told() {
    let server = Memcached::start();
    let (old, new) = (door(&server.url()), door(&server.url()));
    let held = old.lock(b"m", LEASE, For::Never).unwrap();
    server.plain().flush_all();
    let next = new.lock(b"m", LEASE, For::AtMost(Duration::from_secs(3))).unwrap();
    assert_eq!(held.release().unwrap_err().answer, Answer::Lost);
    next.release().unwrap();
}

#[test]
fn a_waiter_rides_out_a_short_outage() {
    let server = Memcached::start();
    let (one, two) =
        (door(&server.url()), Rust::open(&format!("{}?outage=20s", server.url())).unwrap());
    let held = one.lock(b"m", LEASE, For::Never).unwrap();
    thread::scope(|scope| {
        let before = server.commands();
        let waiter = scope.spawn(|| two.lock(b"m", LEASE, For::Ever));
        while server.commands() < before + 3 {
            thread::yield_now();
        }
        server.kill();
        thread::sleep(Duration::from_millis(300));
        server.restart();
        // The restarted server has lost the lock, so the waiter gets it.
        waiter.join().unwrap().unwrap().release().unwrap();
    });
    assert_eq!(held.release().unwrap_err().answer, Answer::Lost);
}

#[test]
fn a_waiter_gives_up_after_the_tolerated_outage() {
    let server = Memcached::start();
    let (one, two) = (door(&server.url()), door(&server.url()));
    let held = one.lock(b"m", LEASE, For::Never).unwrap();
    thread::scope(|scope| {
        let before = server.commands();
        let waiter = scope.spawn(|| refused(two.lock(b"m", LEASE, For::Ever)));
        while server.commands() < before + 3 {
            thread::yield_now();
        }
        // Its end may take its time.
        let (began, watch) = (Instant::now(), Stopwatch::start());
        server.kill();
        let no = waiter.join().unwrap();
        assert!(matches!(no.answer, Answer::Unreachable | Answer::Unknown), "{no:?}");
        assert!(began.elapsed() >= Duration::from_millis(900), "the outage of 1 s is ridden out");
        assert!(watch.elapsed() < Duration::from_secs(5));
    });
    assert!(held.release().is_err());
}

#[test]
fn an_old_server_is_refused_with_the_version_it_has() {
    for no in meet(Behaviour::Version("1.6.12".to_owned())) {
        assert_eq!(no.answer, Answer::Protocol);
        assert!(
            no.sentence.contains("1.6.12") && no.sentence.contains("1.6.13"),
            "{}",
            no.sentence
        );
    }
}

#[test]
fn a_server_without_cas_is_refused_with_the_flag_that_does_it() {
    let server = Memcached::with_args(&["-C"]);
    let no = refused(door(&server.url()).lock(b"m", LEASE, For::Never));
    assert_eq!(no.answer, Answer::Protocol);
    assert!(no.sentence.contains("-C"), "{}", no.sentence);
    assert_eq!(server.plain().get("lock:m"), None, "nothing was stored");
}

#[test]
fn a_server_that_accepts_and_never_answers_is_unreachable() {
    for no in meet(Behaviour::Silent) {
        assert_eq!(no.answer, Answer::Unreachable);
    }
}

#[test]
fn a_server_that_closes_at_once_is_unreachable() {
    for no in meet(Behaviour::Closes) {
        assert_eq!(no.answer, Answer::Unreachable);
    }
}

#[test]
fn something_that_is_no_memcached_is_a_protocol_error() {
    for garbage in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"\0\0\0\0\r\n",
        b"\xff\xfe\n",
        b"-ERR unknown command\r\n",
    ] {
        for no in meet(Behaviour::Garbage(garbage.to_vec())) {
            assert_eq!(no.answer, Answer::Protocol, "{}", no.sentence);
        }
    }
}

#[test]
fn half_a_line_leaves_the_outcome_unknown() {
    let [locking, setting_up, owner] = meet(Behaviour::HalfLine);
    assert_eq!(locking.answer, Answer::Unknown);
    assert!(matches!(setting_up.answer, Answer::Unknown | Answer::Unreachable), "{setting_up:?}");
    assert_eq!(owner.answer, Answer::Unreachable, "reading changes nothing, so nothing is unknown");
}

#[test]
fn a_dripping_server_does_not_hold_us() {
    let [locking, _, owner] = meet(Behaviour::Drip);
    assert_eq!(locking.answer, Answer::Unknown);
    assert_eq!(owner.answer, Answer::Unreachable);
}

#[test]
fn endless_answers_are_cut_off() {
    for behaviour in [Behaviour::EndlessLine, Behaviour::EndlessStats, Behaviour::HugeValue] {
        for no in meet(behaviour) {
            assert_eq!(no.answer, Answer::Protocol, "{}", no.sentence);
        }
    }
}

#[test]
fn a_reply_to_another_request_is_never_believed() {
    for no in meet(Behaviour::WrongOpaque) {
        assert_eq!(no.answer, Answer::Protocol, "{}", no.sentence);
        assert!(no.sentence.contains("out of step"), "{}", no.sentence);
    }
}

#[test]
fn a_server_that_refuses_in_words_is_quoted() {
    let fake = Fake::start(Behaviour::ServerError);
    let no = refused(door(&fake.url()).lock(b"m", LEASE, For::Ever));
    assert_eq!(no.answer, Answer::Protocol);
    assert!(no.sentence.contains("out of memory storing object"), "{}", no.sentence);
}

/// Neither for another's try for which there is no room, nor for the holder's own extension.
#[test]
fn a_full_server_takes_nobodys_lock_away() {
    for flags in [&["-M", "-m", "2"][..], &["-m", "2", "-o", "temporary_ttl=3600"]] {
        let server = Memcached::with_args(flags);
        let (one, other) = (door(&server.url()), door(&server.url()));
        let mut held = one.lock(b"m", LEASE, For::Never).unwrap();
        let full = |number: u64| {
            let more = one.lock(format!("m{number}").as_bytes(), LEASE, For::Never);
            more.map(std::mem::forget).is_err()
        };
        assert!((0..100_000).any(full));
        for _ in 0..5 {
            let other = other.lock(b"m", LEASE, For::Never);
            assert_safe!(other.is_err() || held.remaining().is_zero(), "held twice");
            let no = refused(other);
            assert!(matches!(no.answer, Answer::Protocol | Answer::Busy), "{no:?}");
            if let Err(no) = held.extend(LEASE) {
                assert_eq!(no.answer, Answer::Protocol, "{no:?}");
            }
        }
        assert_eq!(refused(other.lock(b"full", LEASE, For::Never)).answer, Answer::Protocol);
        held.release().unwrap();
    }
}

#[test]
fn a_full_server_is_never_busy() {
    let server = Memcached::with_args(&["-M", "-m", "2"]);
    let door = door(&server.url());
    let outcome = (0..100_000).find_map(|number| {
        let held = door.lock(format!("m{number}").as_bytes(), LEASE, For::Never);
        held.map(std::mem::forget).err()
    });
    let no = outcome.unwrap();
    assert_eq!(no.answer, Answer::Protocol, "{no:?}");
    assert!(no.sentence.contains("out of memory"), "{}", no.sentence);
}

#[test]
fn a_server_without_room_for_connections_says_so() {
    let server = Memcached::with_args(&["-c", "64"]);
    // The connection that saw it start counts until a worker of the server has noticed its end: if
    // that were after the last one below was refused, there would be room for one more.
    let mut first = server.plain();
    while first.stats()["curr_connections"] != "1" {
        thread::yield_now();
    }
    let taken: Vec<_> = (0..80)
        .filter_map(|_| memlock_tests::server::MemcachedText::try_connect(&server.address()).ok())
        .collect();
    let no = refused(door(&server.url()).lock(b"m", LEASE, For::Never));
    assert_eq!(no.answer, Answer::Unreachable, "{}", no.sentence);
    drop((first, taken));
}

#[test]
fn one_dead_server_of_several_does_not_hide_the_others() {
    let (one, two) = (Memcached::start(), Memcached::start());
    let url = format!("memcached://{},{}?connect_timeout=300ms", one.address(), two.address());
    let door = Rust::open(&url).unwrap();
    two.kill();
    let (mut granted, mut unreachable) = (0, 0);
    for number in 0..60 {
        match door.lock(format!("{number}").as_bytes(), LEASE, For::Never) {
            Ok(held) => {
                granted += 1;
                held.release().unwrap();
            }
            Err(no) => {
                assert_eq!(no.answer, Answer::Unreachable);
                assert!(no.sentence.contains(&two.address()), "it says which one: {}", no.sentence);
                unreachable += 1;
            }
        }
    }
    assert!(
        granted > 10 && unreachable > 10,
        "{granted} and {unreachable}: never another server's"
    );
}

/// Such a server tells the version only when it is asked for it; others may write into the item
/// before that.
#[test]
fn a_waiters_note_between_a_grant_and_its_version_is_not_overlooked() {
    let server = Memcached::with_args(&["-M"]);
    let proxy = Proxy::start(server.address());
    proxy.decide(|bytes| {
        let look = bytes.windows(4).position(|four| four == b"\nmg ")?;
        bytes
            .starts_with(b"add lock:m ")
            .then_some(Fault::DelayRest(look + 1, Duration::from_millis(300)))
    });
    let (slow, quick) = (door(&proxy.url()), door(&server.url()));
    let waiter = thread::spawn(move || {
        while quick.owner(b"m").unwrap().is_none() {
            thread::yield_now();
        }
        quick.lock(b"m", LEASE, For::Ever).unwrap().release().unwrap();
    });
    let held = slow.lock(b"m", LEASE, For::Ever).unwrap();
    assert!(proxy.hits() > 0);
    held.release().unwrap();
    waiter.join().unwrap();
}
