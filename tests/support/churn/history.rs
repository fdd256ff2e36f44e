//! The histories of the churn test, and what was seen on the server meanwhile.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use memlock_tests::check::{Facts, HoldInterval, holds};
use memlock_tests::history::{Call, Op, Reader, by_thread};
use memlock_tests::stopwatch::Marks;

use super::keys::{KEYS, name};

/// How much later than its limit or its cancellation a wait may end.
const SLACK: Duration = Duration::from_secs(2);

/// One process of the test.
pub(crate) struct Process {
    /// Numbers are reused: an earlier, dead process may have had the same one.
    pub(crate) pid: u32,
    /// Just before it was started.
    pub(crate) began: Duration,
    /// When it was killed: from the moment when the signal was about to be sent until it was gone.
    pub(crate) killed: Option<(Duration, Duration)>,
}

/// A lock as it was seen on the server, at some moment between these two.
pub(crate) struct Sight {
    pub(crate) before: Duration,
    pub(crate) after: Duration,
    pub(crate) holder: Option<Holder>,
}

#[derive(PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    pub(crate) token: String,
}

/// All of it.
pub(crate) struct History {
    pub(crate) processes: Vec<Process>,
    /// Of all processes, which are numbered by their place.
    pub(crate) calls: Vec<Call>,
    /// By key.
    pub(crate) sights: [Vec<Sight>; KEYS],
    /// For upper bounds on elapsed time.
    pub(crate) marks: Marks,
    /// The end of the test.
    pub(crate) end: Duration,
}

/// One wait, and what became of it.
#[derive(Debug)]
pub(crate) struct Waited<'a> {
    pub(crate) call: &'a Call,
    pub(crate) key: usize,
    /// When it ended: with its call, or with the process.
    pub(crate) ended: Duration,
    /// What it was granted.
    pub(crate) hold: Option<HoldInterval<'a>>,
}

/// When a holder had unlocked, if it got so far.
pub(crate) fn left(hold: &HoldInterval<'_>) -> Option<Duration> {
    hold.released.first().and_then(|release| release.done.as_ref()).map(|done| done.at)
}

impl History {
    /// What the checker has to know. The server has no faults, but the machine may be so busy that
    /// a grant is slow.
    pub(crate) fn facts(&self) -> Facts {
        let numbered = self.processes.iter().enumerate();
        let deaths = numbered.filter_map(|(number, process)| Some((number, process.killed?.0)));
        Facts {
            deaths: deaths.collect(),
            sound: true,
            slow_grants: true,
            now: self.end,
            bound: SLACK,
            marks: self.marks.clone(),
            ..Facts::default()
        }
    }

    /// All waits, in the order in which each thread made them.
    pub(crate) fn waits(&self) -> Vec<Waited<'_>> {
        let calls = by_thread(&self.calls);
        let holds = holds(&calls);
        let releases = calls.iter().filter(|call| call.op == Op::Unlock).count();
        let of_holds: usize = holds.iter().map(|hold| hold.released.len()).sum();
        assert_eq!(releases, of_holds, "a process unlocked what it had not locked");
        let mut holds: HashMap<*const Call, HoldInterval<'_>> =
            holds.into_iter().map(|hold| (std::ptr::from_ref(hold.lock), hold)).collect();
        let locks = calls.into_iter().filter(|call| matches!(call.op, Op::Lock { .. }));
        let waits = locks.map(|call| {
            let key = (0..KEYS).find(|key| name(*key) == call.name);
            let key = key.unwrap_or_else(|| panic!("no key is called {}", call.name));
            // A wait can begin after the signal was sent, before that takes effect.
            let killed = self.processes[call.who.process].killed.map(|(before, _)| before);
            let stopped = killed.unwrap_or(self.end).max(call.began);
            let ended = call.done.as_ref().map_or(stopped, |done| done.at);
            Waited { call, key, ended, hold: holds.remove(&std::ptr::from_ref(call)) }
        });
        waits.collect()
    }
}

/// Reads the history of the process with this number.
pub(crate) fn read(file: PathBuf, number: usize, process: &Process) -> Vec<Call> {
    let mut reader = Reader::new(number, file);
    let mut calls = reader.read(Duration::MAX).unwrap();
    calls.extend(reader.open().cloned());
    let killed = process.killed.is_some();
    assert!(killed || !reader.is_cut_off(), "the history of process {number} ends within a line");
    calls
}
