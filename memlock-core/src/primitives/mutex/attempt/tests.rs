//! The rows of the state table, with replies that no server gives on demand.

use std::time::Duration;

use super::*;
use crate::primitives::mutex::scripted::*;
use crate::wait_id::WaitId;

fn on<R>(server: Server, test: impl FnOnce(&mut Attempt<'_>) -> R) -> R {
    let target = target(server);
    let mut attempt = Attempt::new(&target, lease()).unwrap();
    (attempt.token, attempt.value) = (Token::from_bits(1), OURS.to_vec());
    attempt.begin(false);
    test(&mut attempt)
}

fn sent(attempt: &Attempt<'_>) -> String {
    in_words(&attempt.ops())
}

fn never() -> bool {
    false
}

#[track_caller]
fn goes_on(attempt: &mut Attempt<'_>, replies: impl IntoIterator<Item = Reply>, next: &str) {
    let attempted = attempt.on(Ok(replies.into_iter().collect()), NOW, &never);
    assert!(attempted.is_none(), "{attempted:?}");
    assert_eq!(sent(attempt), next);
}

#[track_caller]
fn ends(attempt: &mut Attempt<'_>, replies: impl IntoIterator<Item = Reply>) -> String {
    in_short(attempt.on(Ok(replies.into_iter().collect()), NOW, &never).unwrap())
}

fn fails(attempt: &mut Attempt<'_>, kind: ErrorKind, sent: bool) -> Option<String> {
    attempt.on(Err(failure(kind, sent)), NOW, &never).map(in_short)
}

fn in_short(attempted: Attempted) -> String {
    match attempted {
        Attempted::Granted { version, sent, .. } => {
            format!("granted {} {:?}", version.number(), sent.since(NOW))
        }
        Attempted::Missed => "missed".into(),
        Attempted::Recovering => "recovering".into(),
        Attempted::Failed(error) => format!("{:?}", error.kind()),
    }
}

fn reserved_for(waiter: WaitId, number: u64) -> Reply {
    let target = target(Server::default());
    let identity = target.context.identity().unwrap();
    value(&identity.reservation(waiter, target.context.clock()), version(number))
}

/// It waits in the queue by an address that may not be reached.
fn waits(attempt: &mut Attempt<'_>) -> WaitId {
    let id = WaitId::parse(b"133b7f1b8d90d880").unwrap();
    attempt.reservations.joined(&[id], false);
    id
}

#[test]
fn a_free_mutex_is_granted_by_one_request() {
    on(Server::default(), |attempt| {
        assert_eq!(sent(attempt), "add");
        let [Op::Add { admission, value, .. }] = attempt.ops()[..] else { panic!() };
        assert_eq!((admission, value), (Admission::Grant, OURS));
        assert_eq!(ends(attempt, [stored(version(7))]), "granted 7 0ns");
    });
    for (reply, outcome) in [(Reply::Exists, "missed"), (Reply::NotAdmitted, "recovering")] {
        on(Server::default(), |attempt| assert_eq!(ends(attempt, [reply]), outcome));
    }
}

#[test]
fn a_waiter_that_was_woken_tries_again_for_a_moment() {
    on(Server { order: Order::Close, ..Server::default() }, |attempt| {
        attempt.begin(true);
        for _ in 0..REPEATS {
            goes_on(attempt, [Reply::Exists], "add");
        }
        assert_eq!(ends(attempt, [Reply::Exists]), "missed");
        // Not if the wait is over, nor behind others, nor where no request overtakes another.
        attempt.begin(true);
        let ended = attempt.on(Ok(vec![Reply::Exists]), NOW, &|| true).map(in_short);
        assert_eq!(ended.as_deref(), Some("missed"));
        attempt.begin(false);
        assert_eq!(ends(attempt, [Reply::Exists]), "missed");
        attempt.begin(true);
        attempt.began = Moment::from_boot(NOW.since_boot() - OVERTAKING);
        assert_eq!(ends(attempt, [Reply::Exists]), "missed");
        // The moment is that of each attempt.
        attempt.begin(true);
        goes_on(attempt, [Reply::Exists], "add");
    });
    on(Server::default(), |attempt| {
        attempt.begin(true);
        assert_eq!(ends(attempt, [Reply::Exists]), "missed");
    });
}

#[test]
fn a_reservation_for_this_waiter_is_replaced_by_its_version() {
    on(Server::default(), |attempt| {
        let id = waits(attempt);
        attempt.begin(true);
        assert_eq!(sent(attempt), "add, get");
        goes_on(attempt, [Reply::Exists, reserved_for(id, 8)], "set 8, get");
        // It is gone: somebody has removed it.
        goes_on(attempt, [Reply::Missing, Reply::Missing], "add, get");
        assert_eq!(ends(attempt, [stored(version(9)), value(OURS, version(9))]), "granted 9 0ns");

        // As seen before the attempt.
        let Reply::Value(item) = reserved_for(id, 8) else { panic!() };
        assert!(attempt.reservations.is_ours(&item));
        attempt.begin(true);
        assert_eq!(sent(attempt), "set 8, get");
        let other = reserved_for(WaitId::parse(b"0000000000000001").unwrap(), 8);
        attempt.begin(true);
        assert_eq!(ends(attempt, [Reply::Exists, other]), "missed");
    });
}

#[test]
fn a_reservation_that_has_outlived_a_restart_counts_for_nothing() {
    on(Server { recovers: Some(LIFE), ..Server::default() }, |attempt| {
        let id = waits(attempt);
        attempt.begin(true);
        goes_on(attempt, [Reply::Exists, reserved_for(id, 8)], "add, get");
    });
}

#[test]
fn a_grant_without_a_reply_is_read_back() {
    let later = NOW + Duration::from_secs(1);
    let in_doubt = |attempt: &mut Attempt<'_>| {
        assert_eq!(attempt.orphan_until(), None);
        assert_eq!(fails(attempt, ErrorKind::Unknown, true), None);
        assert_eq!(sent(attempt), "add, get");
        assert!(attempt.orphan_until().is_some_and(|until| until > NOW + LEASE));
    };
    on(Server::default(), |attempt| {
        in_doubt(attempt);
        // Its lease counts from the first request.
        let replies = vec![Reply::Exists, value(&[OURS, NOTIFIES].concat(), version(8))];
        let granted = attempt.on(Ok(replies), later, &never).map(in_short);
        assert_eq!(granted.as_deref(), Some("granted 8 0ns"));
        assert!(attempt.notifies);
    });
    on(Server::default(), |attempt| {
        in_doubt(attempt);
        assert_eq!(ends(attempt, [Reply::Exists, value(THEIRS, version(8))]), "missed");
    });
    on(Server::default(), |attempt| {
        in_doubt(attempt);
        let replies = vec![stored(version(8)), value(OURS, version(8))];
        let granted = attempt.on(Ok(replies), later, &never).map(in_short);
        assert_eq!(granted.as_deref(), Some("granted 8 1s"));
    });
    // The first of two requests may be the one that was carried out, and the last one be under way.
    on(Server::default(), |attempt| {
        in_doubt(attempt);
        let orphan = attempt.orphan_until().unwrap();
        assert!(attempt.on(Err(failure(ErrorKind::Unknown, true)), later, &never).is_none());
        assert_eq!(attempt.orphan_until().unwrap().since(orphan), later.since(NOW));
        let granted = attempt.on(Ok(vec![Reply::Exists, value(OURS, version(8))]), later, &never);
        assert_eq!(granted.map(in_short).as_deref(), Some("granted 8 0ns"));
    });
    // What was in the way may have been this client's own.
    on(Server::default(), |attempt| {
        in_doubt(attempt);
        goes_on(attempt, [Reply::Exists, Reply::Missing], "add, get");
        assert_eq!(ends(attempt, [Reply::Exists, Reply::Missing]), "Unknown");
    });
    // In the next attempt it was another client's.
    on(Server::default(), |attempt| {
        in_doubt(attempt);
        assert_eq!(ends(attempt, [Reply::Exists, value(THEIRS, version(8))]), "missed");
        attempt.begin(false);
        goes_on(attempt, [Reply::Exists, Reply::Missing], "add, get");
        goes_on(attempt, [Reply::Exists, Reply::Missing], "add, get");
        assert_eq!(ends(attempt, [Reply::Exists, Reply::Missing]), "missed");
    });
}

#[test]
fn a_server_that_does_not_answer_leaves_an_attempt_in_doubt() {
    on(Server::default(), |attempt| {
        assert_eq!(fails(attempt, ErrorKind::Unknown, true), None);
        assert_eq!(fails(attempt, ErrorKind::Unreachable, false), None);
        assert_eq!(fails(attempt, ErrorKind::Unreachable, false).as_deref(), Some("Unknown"));
        // The next attempt reads it back as well.
        attempt.begin(false);
        assert_eq!(sent(attempt), "add, get");
    });
    on(Server::default(), |attempt| {
        let ended = attempt.on(Err(failure(ErrorKind::Unknown, true)), NOW, &|| true);
        assert_eq!(ended.map(in_short).as_deref(), Some("Unknown"));
    });
    // A store that gives no reply is one that does not answer.
    on(Server::default(), |attempt| {
        assert!(attempt.on(Ok(Vec::new()), NOW, &never).is_none());
        assert!(attempt.orphan_until().is_some());
    });
    on(Server::default(), |attempt| {
        let ended = fails(attempt, ErrorKind::Unreachable, false);
        assert_eq!(ended.as_deref(), Some("Unreachable"));
        assert_eq!(attempt.orphan_until(), None);
    });
}

#[test]
fn a_server_that_stores_nothing_may_still_tell_of_a_holder() {
    let refused = |reached, then: &dyn Fn(&mut Attempt<'_>) -> String| {
        on(Server { reached, ..Server::default() }, |attempt| {
            waits(attempt);
            fails(attempt, ErrorKind::Protocol, false).unwrap_or_else(|| {
                assert_eq!(sent(attempt), "get");
                then(attempt)
            })
        })
    };
    let seen = |reply: Reply| move |attempt: &mut Attempt<'_>| ends(attempt, [reply.clone()]);
    let ours = WaitId::parse(b"133b7f1b8d90d880").unwrap();
    let other = WaitId::parse(b"0000000000000001").unwrap();
    for (reply, outcome) in [
        (value(THEIRS, version(8)), "missed"),
        (reserved_for(other, 8), "missed"),
        (reserved_for(ours, 8), "Protocol"),
        (value(OURS, version(8)), "Protocol"),
        (Reply::Missing, "Protocol"),
    ] {
        assert_eq!(refused(true, &seen(reply)), outcome);
    }
    // A read without a reply is repeated.
    let lost = |times, attempt: &mut Attempt<'_>| {
        for _ in 0..times {
            assert_eq!(fails(attempt, ErrorKind::Unknown, true), None);
        }
    };
    let found = |attempt: &mut Attempt<'_>| {
        lost(2, attempt);
        ends(attempt, [value(THEIRS, version(8))])
    };
    assert_eq!(refused(true, &found), "missed");
    let never_found = |attempt: &mut Attempt<'_>| {
        lost(2, attempt);
        fails(attempt, ErrorKind::Unknown, true).unwrap()
    };
    assert_eq!(refused(true, &never_found), "Protocol");
    let unsent = |attempt: &mut Attempt<'_>| fails(attempt, ErrorKind::Unknown, false).unwrap();
    assert_eq!(refused(true, &unsent), "Protocol");
    // A server that was never reached tells nothing.
    assert_eq!(refused(false, &|_| unreachable!()), "Protocol");
}

#[test]
fn another_token_leaves_the_place_in_the_queue() {
    on(Server::default(), |attempt| {
        waits(attempt);
        attempt.will_wait();
        assert_eq!(fails(attempt, ErrorKind::Unknown, true), None);
        attempt.change_token().unwrap();
        assert_ne!(attempt.token, Token::from_bits(1));
        assert_eq!(attempt.orphan_until(), None);
        attempt.begin(false);
        assert_eq!(sent(attempt), "add, get");
        assert!(attempt.value.ends_with(NOTIFIES));
    });
}
