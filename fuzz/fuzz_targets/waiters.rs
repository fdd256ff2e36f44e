//! The queue of waiters: an item that every waiter writes to, and every releaser reads.

#![no_main]

use libfuzzer_sys::fuzz_target;
use memlock_core::wait::entries::{Entry, WaitId, line, passing, waiters, without};

fuzz_target!(|queue: &[u8]| {
    let read: Vec<Entry<'_>> = waiters(queue).collect();
    let some: Vec<WaitId> = read.iter().step_by(2).map(|entry| entry.id).collect();
    for entry in &read {
        assert!(entry.bell.is_none_or(|bell| bell.port() != 0 && !bell.ip().is_multicast()));
    }
    leaving(queue, &read, &some);
    being_passed(queue, &read, &some);
    joining(queue, &read);
});

/// Taking some off leaves all others, as they are and in their order, and nothing else.
fn leaving(queue: &[u8], read: &[Entry<'_>], gone: &[WaitId]) {
    for gone in [&[], gone] {
        let rest = without(queue, gone);
        let left: Vec<_> = waiters(&rest).map(|entry| (entry.id, entry.bell, entry.passed)).collect();
        let kept = read.iter().filter(|entry| !gone.contains(&entry.id));
        let kept: Vec<_> = kept.map(|entry| (entry.id, entry.bell, entry.passed)).collect();
        assert_eq!(left, kept);
        assert_eq!(without(&rest, &[]), rest, "what is left is clean");
        let mut lines = queue.split_inclusive(|&byte| byte == b'\n');
        for line in rest.split_inclusive(|&byte| byte == b'\n') {
            assert!(lines.any(|old| old == line), "a line is kept as it is, in its place");
        }
    }
}

/// Counting a release in vain changes that count and nothing else.
fn being_passed(queue: &[u8], read: &[Entry<'_>], gone: &[WaitId]) {
    let Some(passed) = read.last() else { return };
    let before = without(queue, gone);
    let after = passing(queue, gone, passed.id);
    let (before, after): (Vec<_>, Vec<_>) = (fields(&before), fields(&after));
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before[..3], after[..3]);
        if WaitId::parse(before[1]) != Some(passed.id) {
            assert_eq!(before, after);
            continue;
        }
        let count = |fields: &[&[u8]]| {
            let text = fields.get(3).and_then(|field| std::str::from_utf8(field).ok());
            text.and_then(|text| text.parse::<u32>().ok()).unwrap_or(0)
        };
        assert_eq!(count(after), count(before).saturating_add(1));
        assert_eq!(before.get(4..).unwrap_or_default(), &after[4..], "a later version's fields are kept");
    }
}

/// The fields of each line.
fn fields(queue: &[u8]) -> Vec<Vec<&[u8]>> {
    let lines = queue.split_inclusive(|&byte| byte == b'\n');
    lines.map(|line| line[..line.len() - 1].split(|&byte| byte == b'#').collect()).collect()
}

/// Whoever can be read can be written anew, and stands at the end of the queue.
fn joining(queue: &[u8], read: &[Entry<'_>]) {
    let Some(first) = read.first() else { return };
    let joined = [without(queue, &[]), line(first.bell, first.id)].concat();
    let last = waiters(&joined).last().expect("we are in it");
    assert_eq!((last.id, last.bell, last.passed), (first.id, first.bell, 0));
    assert_eq!(waiters(&joined).count(), read.len() + 1);
}
