//! What comes late, and what was released in part.

use super::*;
use crate::RenewOptions;
use crate::store::Returns;

/// The vote of a program that died while it acquired.
fn leave_vote(bench: &Bench, member: usize, name: &str) {
    let key = crate::name::Keyspace::default().lock(name.as_bytes());
    let value = b"memlock/1 000000000000000000000000000000ff host 1 1 rings try=1";
    let add = Op::add(&key, value, Expiry::After(Duration::from_secs(60)), Returns::Version);
    bench.members[member].store.run(Route::of(&key), &[add]).unwrap();
}

/// One lock without q votes is renewed apart from the others.
#[test]
fn a_lock_at_risk_does_not_cost_the_others_their_leases() {
    let bench = Bench::new(3);
    let client = bench.open();
    let lease = Duration::from_secs(3);
    leave_vote(&bench, 2, "x");
    let y = client
        .mutex("y", lease)
        .unwrap()
        .try_lock()
        .unwrap()
        .unwrap()
        .renew(RenewOptions::default())
        .unwrap();
    let _at_risk = client
        .mutex("x", lease)
        .unwrap()
        .try_lock()
        .unwrap()
        .unwrap()
        .renew(RenewOptions::default())
        .unwrap();
    assert!((0..3).all(|member| bench.has(member, "y")));
    bench.members[1].is_down.store(true, Ordering::SeqCst);
    for _ in 0..60 {
        std::thread::sleep(Duration::from_millis(100));
        assert!(
            y.is_held(),
            "y is lost: {:?}; its votes: {:?}",
            y.lost(),
            [bench.has(0, "y"), bench.has(2, "y")]
        );
    }
}

/// A check begins while the lease runs, and its thread is delayed beyond it. Another thread extends the
/// lock meanwhile.
#[test]
fn a_late_check_removes_nothing() {
    let bench = Bench::new(3);
    let quorum = bench.quorum().unwrap();
    let key = crate::name::Keyspace::default().lock(b"m");
    let value = b"memlock/1 000000000000000000000000000000aa host 1 1";
    let returns = Returns::Version;
    let after = |seconds| Expiry::After(Duration::from_secs(seconds));
    let run = |op: Op<'_>| quorum.run(Route::of(&key), &[op]);
    let add = |admission| run(Op::Add { key: &key, value, expiry: after(2), returns, admission });
    let Reply::Stored(stored) = add(Admission::Grant).unwrap().remove(0) else { panic!() };
    std::thread::scope(|scope| {
        // The check begins while the lease runs, and its thread is delayed.
        let check = scope.spawn(|| {
            STALL.set(Some(Duration::from_millis(2200)));
            add(Admission::Reclaim(EPOCH))
        });
        std::thread::sleep(Duration::from_millis(500));
        let extended = run(Op::CompareAndSet {
            key: &key,
            version: stored.version,
            value,
            expiry: after(20),
            returns,
        });
        assert!(matches!(extended.unwrap()[..], [Reply::Stored(_)]));
        let failure = check.join().unwrap().unwrap_err();
        assert_eq!(failure.error.kind(), ErrorKind::Unknown);
    });
    let other = bench.elsewhere().open();
    let got = other.mutex("m", LEASE).unwrap().try_lock().unwrap();
    assert!(got.is_none(), "two holders: the first one was extended for 20 s, 2 s ago");
}

/// Members that were started anew, or are down, could have the votes that its lock is missing.
#[test]
fn a_waiter_in_the_process_of_the_holder_does_not_spin() {
    for is_down_meanwhile in [false, true] {
        let bench = Bench::new(3);
        let client = bench.open();
        let mutex = client.mutex("m", LEASE).unwrap();
        bench.members[2].is_down.store(true, Ordering::SeqCst);
        let lock = mutex.try_lock().unwrap().unwrap();
        bench.members[2].is_down.store(is_down_meanwhile, Ordering::SeqCst);
        pass();
        // Member 1 is started anew.
        drop_vote(&bench, 1, "m");
        bench.members[1].abstains.store(true, Ordering::SeqCst);
        bench.requests();
        let got = mutex.lock_for(Duration::from_secs(2)).unwrap();
        assert!(got.is_none());
        let requests = bench.requests();
        drop(lock);
        assert!(requests.iter().all(|&it| it < 100), "{requests:?} in 2 s");
    }
}

/// What an operator sees, he can take away.
#[test]
fn a_single_vote_of_a_dead_program_is_taken_away_by_force() {
    let bench = Bench::new(3);
    let mutex = bench.open().mutex("m", LEASE).unwrap();
    for member in 0..3 {
        leave_vote(&bench, member, "m");
        bench.members.iter().for_each(|other| other.abstains.store(true, Ordering::SeqCst));
        let owner = mutex.owner().unwrap().unwrap();
        assert!(mutex.force_unlock(&owner.token()).unwrap());
        assert!(!bench.has(member, "m"));
        assert!(!mutex.force_unlock(&owner.token()).unwrap());
        leave_vote(&bench, member, "m");
        bench.members[member].is_down.store(true, Ordering::SeqCst);
        assert!(mutex.owner().unwrap().is_none());
        bench.members[member].is_down.store(false, Ordering::SeqCst);
        drop_vote(&bench, member, "m");
        pass();
    }
}

/// Votes that were put back after another client had the lock.
#[test]
fn a_release_does_not_count_votes_that_came_late() {
    let bench = Bench::new(3);
    let quorum = bench.quorum().unwrap();
    let key = crate::name::Keyspace::default().lock(b"m");
    let value = b"memlock/1 000000000000000000000000000000aa host 1 1";
    let returns = Returns::Version;
    let after = |seconds| Expiry::After(Duration::from_secs(seconds));
    let run = |op: Op<'_>| quorum.run(Route::of(&key), &[op]);
    let Reply::Stored(stored) =
        run(Op::Add { key: &key, value, expiry: after(2), returns, admission: Admission::Grant })
            .unwrap()
            .remove(0)
    else {
        panic!()
    };
    let began = std::time::Instant::now();
    for member in 1..3 {
        drop_vote(&bench, member, "m");
        bench.members[member].abstains.store(true, Ordering::SeqCst);
        bench.members[member].loses_adds.store(true, Ordering::SeqCst);
    }
    std::thread::sleep(Duration::from_millis(2300).saturating_sub(began.elapsed()));
    for member in 1..3 {
        bench.members[member].abstains.store(false, Ordering::SeqCst);
        bench.members[member].loses_adds.store(false, Ordering::SeqCst);
    }
    pass();
    // Another client holds the lock, and releases it.
    let other = bench.elsewhere().open();
    assert_eq!(
        other.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap().unlock().unwrap(),
        Release::Released
    );
    // Now the requests arrive.
    for member in 1..3 {
        let late = b"memlock/1 000000000000000000000000000000aa host 1 1 try=1";
        bench.members[member]
            .store
            .run(Route::of(&key), &[Op::add(&key, late, after(2), returns)])
            .unwrap();
    }
    let released = run(Op::Delete { key: &key, version: stored.version }).unwrap().remove(0);
    assert_eq!(released, Reply::Missing, "another client held the lock in between");
}

/// Of the release, member 1 gets no request, and from member 2 there is no reply.
fn release_in_part(bench: &Bench, lock: &mut Lock) {
    let lose = |lose| {
        bench.members[1].loses_requests.store(lose, Ordering::SeqCst);
        bench.members[2].loses_replies.store(lose, Ordering::SeqCst);
    };
    lose(true);
    lock.unlock().unwrap_err();
    lose(false);
    pass();
}

/// Of a release without enough replies, each part may have been carried out.
#[test]
fn an_extension_does_not_put_back_what_a_release_has_removed() {
    let bench = Bench::new(3);
    let mut lock = hold(&bench);
    release_in_part(&bench, &mut lock);
    let there = bench.elsewhere();
    let second = there.open().mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert!(second.remaining() > Duration::ZERO);
    // Member 0 is started anew.
    drop_vote(&bench, 0, "m");
    bench.members[0].abstains.store(true, Ordering::SeqCst);
    let extended = lock.extend(LEASE);
    assert!(
        lock.remaining().is_zero() || extended != Ok(Extension::Extended),
        "two holders, fences {} and {}",
        lock.fence(),
        second.fence()
    );
}

/// The same, without a restart.
#[test]
fn an_extension_does_not_vote_again_after_a_release() {
    let bench = Bench::new(3);
    let mut lock = hold(&bench);
    release_in_part(&bench, &mut lock);
    let there = bench.elsewhere();
    let mut second = there.open().mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert_eq!(second.unlock().unwrap(), Release::Released);
    bench.members[2].is_down.store(true, Ordering::SeqCst);
    let extended = lock.extend(LEASE);
    assert_ne!(extended, Ok(Extension::Extended));
}

/// Also if another thread extends it at the same time. `sends`: whether the release may have been
/// carried out.
fn a_failed_release_beside_an_extension(sends: bool) {
    let bench = Bench::new(3);
    let quorum = bench.quorum().unwrap();
    let key = crate::name::Keyspace::default().lock(b"m");
    let value = b"memlock/1 000000000000000000000000000000aa host 1 1";
    let (expiry, returns) = (Expiry::After(LEASE), Returns::Version);
    let run = |op: Op<'_>| quorum.run(Route::of(&key), &[op]);
    let add = Op::Add { key: &key, value, expiry, returns, admission: Admission::Grant };
    let Reply::Stored(stored) = run(add).unwrap().remove(0) else { panic!() };
    let version = stored.version;
    let all = |fail: bool| {
        for member in &bench.members {
            let fault = if sends { &member.loses_requests } else { &member.is_down };
            fault.store(fail, Ordering::SeqCst);
        }
    };
    let requests =
        || bench.members.iter().map(|it| it.requests.load(Ordering::SeqCst)).sum::<usize>();
    let before = requests();
    std::thread::scope(|scope| {
        let extension = scope.spawn(|| {
            STALL.set(Some(Duration::from_millis(2000)));
            run(Op::CompareAndSet { key: &key, version, value, expiry, returns })
        });
        while requests() == before {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(300));
        all(true);
        let failure = run(Op::Delete { key: &key, version }).unwrap_err();
        assert_eq!(failure.sent, sends);
        all(false);
        let extended = extension.join().unwrap();
        match extended {
            Ok(replies) => assert!(!sends && matches!(replies[..], [Reply::Stored(_)])),
            Err(failure) => {
                assert!(sends);
                assert_eq!((failure.error.kind(), failure.sent), (ErrorKind::Unknown, true));
            }
        }
    });
    assert!((0..3).all(|member| bench.has(member, "m")));
    pass();
    let released = run(Op::Delete { key: &key, version }).unwrap().remove(0);
    assert_eq!(released, Reply::Deleted);
}

#[test]
fn an_extension_removes_nothing_while_a_release_fails() {
    a_failed_release_beside_an_extension(false);
}

#[test]
fn an_extension_removes_nothing_while_a_release_is_in_doubt() {
    a_failed_release_beside_an_extension(true);
}

/// Also if its client makes no other call.
#[test]
fn the_vote_of_a_server_with_a_wrong_clock_is_removed() {
    let bench = Bench::new(3);
    let client = bench.open();
    bench.members[2].ahead.store(1000, Ordering::SeqCst);
    let mut lock = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    drop(client);
    bench.members[1].is_down.store(true, Ordering::SeqCst);
    bench.members[2].ahead.store(0, Ordering::SeqCst);
    let got = bench.open().mutex("m", LEASE).unwrap().try_lock().map(|it| it.is_some());
    assert_eq!(got, Ok(true), "the lock was released");
}

/// It asks the members without a vote for one.
#[test]
fn a_renewal_in_doubt_goes_on_though_a_member_is_down() {
    let bench = Bench::new(3);
    let client = bench.open();
    bench.members[2].is_down.store(true, Ordering::SeqCst);
    let lock = client.mutex("m", Duration::from_secs(6)).unwrap().try_lock().unwrap().unwrap();
    bench.members[2].is_down.store(false, Ordering::SeqCst);
    pass();
    let lock = lock.renew(RenewOptions::default()).unwrap();
    bench.members[1].is_down.store(true, Ordering::SeqCst);
    bench.members[2].loses_requests.store(true, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(1200));
    bench.members[2].loses_requests.store(false, Ordering::SeqCst);
    for _ in 0..16 {
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(lock.is_held());
}

/// Not from the reply of a member that was asked for something else.
#[test]
fn the_queue_is_read_from_the_next_member() {
    for down in 0..3 {
        let bench = Bench::new(3);
        let key = crate::name::Keyspace::default().lock(b"m");
        let waiters = key.waiters();
        let route = Route::of(&key);
        for member in &bench.members {
            let add = Op::add(&waiters, b"entries", Expiry::Never, Returns::Nothing);
            member.store.run(route, &[add]).unwrap();
        }
        bench.members[down].is_down.store(true, Ordering::SeqCst);
        let reads = [Op::get(&waiters), Op::get(&key)];
        let replies = bench.quorum().unwrap().run(route, &reads).unwrap();
        let [Reply::Value(item), Reply::Missing] = &replies[..] else { panic!("{replies:?}") };
        assert_eq!(item.value, b"entries");
        let append = Op::Append { key: &waiters, value: b"x" };
        let replies = bench.quorum().unwrap().run(route, &[append, reads[0], reads[1]]).unwrap();
        let [Reply::Written, Reply::Value(item), Reply::Missing] = &replies[..] else {
            panic!("{replies:?}")
        };
        assert_eq!(item.value, b"entriesx");
    }
}
