//! The queue of waiters: an item that every waiter writes to, and every releaser reads.

use memlock_core::notify::WakeAddress;
use memlock_core::wait::entries::{
    Entry, MOST_OVERTAKEN, Request, after, in_order, line, waiters, without,
};
use memlock_core::wait_id::WaitId;

pub fn run(queue: &[u8]) {
    let read: Vec<Entry<'_>> = waiters(queue).collect();
    let some: Vec<WaitId> = read.iter().step_by(2).map(|entry| entry.id).collect();
    for entry in &read {
        assert!(
            entry
                .address
                .map(|address| address.socket())
                .is_none_or(|socket| socket.port() != 0 && !socket.ip().is_multicast())
        );
        assert!(entry.permits > 0, "whoever waits waits for something");
    }
    in_turn(queue, &read);
    leaving(queue, &read, &some);
    being_passed(queue, &some, read.last(), read.first());
    joining(queue, &read);
}

/// What is read of a line, but for the line itself.
fn said(entry: &Entry<'_>) -> (WaitId, Option<WakeAddress>, u32, i64, u32, Option<u32>) {
    let Entry { id, address, passed, priority, permits, overtaken, .. } = *entry;
    (id, address, passed, priority, permits, overtaken)
}

/// By which one comes before another.
fn rank(entry: &Entry<'_>) -> i64 {
    if entry.overtaken.is_some_and(|often| often >= MOST_OVERTAKEN) {
        i64::MAX
    } else {
        entry.priority
    }
}

/// No waiter is left out, the higher ones come first, and equals in their order.
fn in_turn(queue: &[u8], read: &[Entry<'_>]) {
    let mut rest: Vec<&Entry<'_>> = read.iter().collect();
    for next in &in_order(queue) {
        let highest = rest.iter().map(|entry| rank(entry)).max().expect("as many as were read");
        let place =
            rest.iter().position(|entry| rank(entry) == highest).expect("it is one of them");
        assert_eq!(rest.remove(place), next);
    }
    assert!(rest.is_empty(), "nobody is left out");
}

/// Taking some off leaves all others, as they are and in their order, and nothing else.
fn leaving(queue: &[u8], read: &[Entry<'_>], gone: &[WaitId]) {
    for gone in [&[], gone] {
        let rest = without(queue, gone);
        let left: Vec<_> = waiters(&rest).map(|entry| said(&entry)).collect();
        let kept: Vec<_> =
            read.iter().filter(|entry| !gone.contains(&entry.id)).map(said).collect();
        assert_eq!(left, kept);
        assert_eq!(without(&rest, &[]), rest, "what is left is clean");
        assert_eq!(after(queue, gone, None, None), rest, "nobody was passed or overtaken");
        let mut lines = queue.split_inclusive(|&byte| byte == b'\n');
        for line in rest.split_inclusive(|&byte| byte == b'\n') {
            assert!(lines.any(|old| old == line), "a line is kept as it is, in its place");
        }
    }
}

/// Counting a release in vain, and overtaken waiters, changes these counts and nothing else.
fn being_passed(
    queue: &[u8],
    gone: &[WaitId],
    passed: Option<&Entry<'_>>,
    woken: Option<&Entry<'_>>,
) {
    let Some(passed) = passed else { return };
    for woken in [None, woken, Some(passed)] {
        let (before, counted) = (
            without(queue, gone),
            after(queue, gone, Some(passed.id), woken.map(|woken| woken.id)),
        );
        let entries = waiters(&before).zip(waiters(&counted));
        assert_eq!(fields(&before).len(), fields(&counted).len());
        if !ids_differ(queue) {
            continue;
        }
        let ahead = woken.and_then(|woken| waiters(queue).position(|entry| entry.id == woken.id));
        let ahead: Vec<Entry<'_>> = waiters(queue).take(ahead.unwrap_or(0)).collect();
        for ((old, new), (before, after)) in
            entries.zip(fields(&before).iter().zip(&fields(&counted)))
        {
            let in_front = ahead.iter().any(|entry| entry.id == old.id);
            let is_passed = old.id == passed.id || in_front && old.address.is_none();
            let overtaken = in_front && woken.is_some_and(|woken| rank(&old) < rank(woken));
            let (times, often) = (u32::from(is_passed), u32::from(overtaken && !is_passed));
            assert_eq!(new.passed, old.passed.saturating_add(times));
            assert_eq!(new.overtaken, old.overtaken.map(|before| before.saturating_add(often)));
            assert_eq!(
                (new.address, new.priority, new.permits),
                (old.address, old.priority, old.permits)
            );
            // Neither what stands before the counts nor what a later version put behind them.
            assert_eq!(before[..3], after[..3]);
            assert_eq!(before.get(6..).unwrap_or_default(), after.get(6..).unwrap_or_default());
            assert!(times + often > 0 || before == after, "it is left as it is");
        }
    }
}

fn ids_differ(queue: &[u8]) -> bool {
    let mut ids: Vec<u64> = waiters(queue).map(|entry| entry.id.0).collect();
    ids.sort_unstable();
    ids.windows(2).all(|two| two[0] != two[1])
}

/// The fields of each line.
fn fields(queue: &[u8]) -> Vec<Vec<&[u8]>> {
    let lines = queue.split_inclusive(|&byte| byte == b'\n');
    lines.map(|line| line[..line.len() - 1].split(|&byte| byte == b'#').collect()).collect()
}

/// An entry that can be read can be written again, and is at the end of the queue.
fn joining(queue: &[u8], read: &[Entry<'_>]) {
    let Some(first) = read.first() else { return };
    let request = Request {
        priority: first.priority,
        permits: first.permits,
        ages: first.overtaken.is_some(),
    };
    let joined = [without(queue, &[]), line(first.address, first.id, request)].concat();
    let last = waiters(&joined).last().expect("we are in it");
    assert_eq!(
        said(&last),
        (first.id, first.address, 0, first.priority, first.permits, first.overtaken.map(|_| 0))
    );
    assert_eq!(waiters(&joined).count(), read.len() + 1);
}
