//! What the processes of the churn test wrote down, and what was seen on the server meanwhile.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use memlock_tests::stopwatch::Marks;

use super::event::{Event, KEYS, What};

/// One process of the test.
pub(crate) struct Process {
    /// Numbers are reused: an earlier, dead process may have had the same one.
    pub(crate) pid: u32,
    /// Just before it was started.
    pub(crate) began: Duration,
    /// It cannot be woken.
    pub(crate) unreachable: bool,
    /// When it was killed: from the moment when the signal was about to be sent until it was gone.
    pub(crate) killed: Option<(Duration, Duration)>,
}

/// One wait, and what became of it.
#[derive(Debug)]
pub(crate) struct Waited {
    /// Which process, and which of its waits.
    pub(crate) process: usize,
    pub(crate) number: u64,
    pub(crate) key: usize,
    pub(crate) began: Duration,
    pub(crate) limit: Option<Duration>,
    pub(crate) cancelled: Option<Duration>,
    /// When it ended: by a grant, without one, or with the process.
    pub(crate) ended: Duration,
    pub(crate) end: End,
}

#[derive(Debug)]
pub(crate) enum End {
    Acquired(HoldInterval),
    Nothing(String),
    /// The process was killed.
    Died,
}

#[derive(Debug)]
pub(crate) struct HoldInterval {
    pub(crate) entered: Duration,
    pub(crate) fence: u64,
    pub(crate) deadline: Duration,
    /// When it was about to unlock, if it got so far.
    pub(crate) leaving: Option<Duration>,
    /// When it had unlocked, and the answer.
    pub(crate) left: Option<(Duration, String)>,
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
    pub(crate) waits: Vec<Waited>,
    /// By key.
    pub(crate) sights: [Vec<Sight>; KEYS],
    /// For upper bounds on elapsed time.
    pub(crate) marks: Marks,
}

impl HoldInterval {
    /// Until when no other client may be inside.
    pub(crate) fn until(&self) -> Duration {
        self.leaving.map_or(self.deadline, |leaving| leaving.min(self.deadline))
    }
}

impl Waited {
    pub(crate) fn hold(&self) -> Option<&HoldInterval> {
        match &self.end {
            End::Acquired(hold) => Some(hold),
            _ => None,
        }
    }

    /// When it should have ended at the latest.
    pub(crate) fn due(&self) -> Option<Duration> {
        let limit = self.limit.map(|limit| self.began + limit);
        limit.into_iter().chain(self.cancelled).min()
    }

    /// Where to find it in the files.
    pub(crate) fn whose(&self) -> String {
        format!("process {} wait {} on key {}", self.process, self.number, self.key)
    }
}

/// Reads the history that a process wrote. `killed`: just before the signal was sent. `end`: the
/// end of the test.
pub(crate) fn read(
    file: &Path,
    process: usize,
    killed: Option<Duration>,
    end: Duration,
) -> Vec<Waited> {
    // A client that was killed at once may not have made its file yet.
    parse(&std::fs::read_to_string(file).unwrap_or_default(), process, killed, end)
}

/// [`read`] of the text of a file.
pub(crate) fn parse(
    text: &str,
    process: usize,
    killed: Option<Duration>,
    end: Duration,
) -> Vec<Waited> {
    let mut waits: HashMap<u64, Waited> = HashMap::new();
    for line in text.split_inclusive('\n') {
        let Some(line) = line.strip_suffix('\n') else {
            assert!(killed.is_some(), "process {process}: its history ends with half a line");
            break;
        };
        let Event { at, wait: number, what } = Event::read(line)
            .unwrap_or_else(|| panic!("process {process}: its history cannot be read at {line:?}"));
        if let What::Began { key, limit } = what {
            // A wait can begin after `killed`, before the signal takes effect.
            let (ended, end) = (killed.unwrap_or(end).max(at), End::Died);
            let waited =
                Waited { process, number, key, began: at, limit, cancelled: None, ended, end };
            assert!(waits.insert(number, waited).is_none(), "a wait began twice: {line}");
            continue;
        }
        let waited =
            waits.get_mut(&number).unwrap_or_else(|| panic!("a wait that did not begin: {line}"));
        match (what, &mut waited.end) {
            (What::Cancelled, _) => waited.cancelled = Some(at),
            (What::Entered { fence, deadline }, End::Died) => {
                let hold = HoldInterval { entered: at, fence, deadline, leaving: None, left: None };
                (waited.ended, waited.end) = (at, End::Acquired(hold));
            }
            (What::Ended(answer), End::Died) => {
                (waited.ended, waited.end) = (at, End::Nothing(answer));
            }
            (What::Leaving, End::Acquired(hold)) => hold.leaving = Some(at),
            (What::Left(answer), End::Acquired(hold)) => hold.left = Some((at, answer)),
            (what, _) => panic!("process {process}: {what:?} at the wrong time"),
        }
    }
    let mut waits: Vec<Waited> = waits.into_values().collect();
    waits.sort_by_key(|waited| waited.number);
    waits
}
