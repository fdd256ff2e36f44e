//! What a lock on a quorum costs each member.

use std::time::Duration;

use memlock_core::{Client, Extension, Release};
use memlock_tests::cost::usual_cost;

use crate::{Bench, GUARD, Trouble, first_member, hold};

/// What each member is asked: commands and round trips.
type Cost = Vec<(u64, usize)>;

fn cost(bench: &Bench, step: impl Fn()) -> Cost {
    // Each member by itself: one that is slow to answer is asked once more.
    let counted = || -> Cost {
        let counts =
            |member: &crate::Member| (member.server.commands(), member.proxy.round_trips());
        bench.members.iter().map(counts).collect()
    };
    let costs: Vec<Cost> = (0..10)
        .map(|_| {
            let before = counted();
            step();
            let after = counted();
            let less = |(after, before): (&(u64, usize), &(u64, usize))| {
                (after.0 - before.0, after.1 - before.1)
            };
            after.iter().zip(&before).map(less).collect()
        })
        .collect();
    (0..bench.members.len())
        .map(|place| costs.iter().map(|cost| cost[place]).min().unwrap())
        .collect()
}

fn ready(number: usize) -> (Bench, Client) {
    let bench = Bench::of(number);
    let client = bench.client();
    // The first time, the connections are opened, and the counters of fences created.
    drop(hold(&client, "m"));
    (bench, client)
}

/// What a lock and its release are on a single server.
fn commands_on_one_server() -> u64 {
    let server = crate::start();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("m", GUARD).unwrap();
    drop(mutex.try_lock().unwrap().unwrap());
    let commands = usual_cost(|| {
        let before = server.commands();
        drop(mutex.try_lock().unwrap().unwrap());
        server.commands() - before
    });
    // The stamp of a fence, which a quorum counts by itself.
    commands - server.stamps()
}

/// The same on each member, and the increment of its counter. The queue is read on the first member
/// only.
#[test]
fn a_free_lock_is_one_round_trip_to_each_member_and_so_is_its_release() {
    let alone = commands_on_one_server();
    for number in [3, 5] {
        let (bench, client) = ready(number);
        let mutex = client.mutex("m", GUARD).unwrap();
        let first = first_member(&bench, &client, "m");
        let wanted: Cost =
            (0..number).map(|member| (alone + 1 + u64::from(member == first), 2)).collect();
        let tried = cost(&bench, || {
            let mut lock = mutex.try_lock().unwrap().unwrap();
            assert_eq!(lock.unlock().unwrap(), Release::Released);
        });
        assert_eq!(tried, wanted);
        // One that would wait if it had to.
        assert_eq!(cost(&bench, || drop(mutex.lock().unwrap())), wanted);
    }
}

#[test]
fn an_extension_and_a_check_are_one_round_trip_each() {
    let (bench, client) = ready(3);
    let mutex = client.mutex("m", GUARD).unwrap();
    let costs = cost(&bench, || {
        let mut lock = mutex.try_lock().unwrap().unwrap();
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
        assert!(lock.check().unwrap());
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    });
    assert!(costs.iter().all(|&(_, trips)| trips == 4), "{costs:?}");
}

#[test]
fn without_a_minority_it_costs_the_others_the_same() {
    let (bench, client) = ready(5);
    let mutex = client.mutex("m", GUARD).unwrap();
    bench.begin(Trouble::Refused, 3, 2);
    drop(mutex.lock().unwrap());
    let trips = |bench: &Bench| -> Vec<usize> {
        bench.some(0, 3).map(|member| member.proxy.round_trips()).collect()
    };
    let least = usual_cost(|| {
        let before = trips(&bench);
        drop(mutex.try_lock().unwrap().unwrap());
        let after = trips(&bench);
        after.iter().zip(before).map(|(after, before)| after - before).collect::<Vec<_>>()
    });
    assert_eq!(least, [2, 2, 2]);
}

/// All requests are sent before the first reply is awaited.
#[test]
fn the_members_are_asked_at_once() {
    use memlock_tests::proxy::{Fault, Match};
    use memlock_tests::stopwatch::Stopwatch;
    const DELAY: Duration = Duration::from_millis(200);
    let (bench, client) = ready(5);
    for member in &bench.members {
        member.proxy.inject_always(Match::Adding, Fault::DelayReply(DELAY));
    }
    let watch = Stopwatch::start();
    let lock = client.mutex("m", GUARD).unwrap().try_lock().unwrap();
    let took = watch.elapsed();
    assert!(lock.is_some() && took < 2 * DELAY, "{took:?}");
}
