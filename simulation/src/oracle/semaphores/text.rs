//! A semaphore's record and queue, parsed independently of memlock, by the format described in the
//! head comments of its `record` and `entries`.

/// The record of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) token: String,
    pub(crate) permits: u32,
    pub(crate) expires: u64,
    pub(crate) life: u64,
    pub(crate) serial: u64,
    pub(crate) reservation: Option<Reservation>,
    pub(crate) lines: Vec<Line>,
}

/// The reservation of a waiter for several permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) token: String,
    pub(crate) priority: i64,
    pub(crate) until: u64,
}

/// The line of one holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) token: String,
    pub(crate) permits: u32,
    pub(crate) until: u64,
}

impl Record {
    pub(crate) fn read(value: &[u8]) -> Option<Record> {
        let text = std::str::from_utf8(value).ok()?.strip_suffix('\n')?;
        let mut lines = text.split('\n');
        let words: Vec<&str> = lines.next()?.split(' ').collect();
        let ["memlock-semaphore/1", token, permits, expires, life, serial, more @ ..] = &words[..]
        else {
            return None;
        };
        let reservation = more.iter().find_map(|word| word.strip_prefix("gathering="));
        Some(Record {
            token: token.to_string(),
            permits: permits.parse().ok()?,
            expires: expires.parse().ok()?,
            life: life.parse().ok()?,
            serial: serial.parse().ok()?,
            reservation: match reservation {
                Some(text) => Some(Reservation::read(text)?),
                None => None,
            },
            lines: lines.map(Line::read).collect::<Option<_>>()?,
        })
    }

    pub(crate) fn line(&self, token: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.token == token)
    }

    /// The permits of all lines, whether their ends have passed or not.
    pub(crate) fn given(&self) -> u64 {
        self.lines.iter().map(|line| u64::from(line.permits)).sum()
    }
}

impl Reservation {
    fn read(text: &str) -> Option<Reservation> {
        let [token, priority, until] = text.split(':').collect::<Vec<_>>()[..] else { return None };
        Some(Reservation {
            token: token.to_owned(),
            priority: priority.parse().ok()?,
            until: until.parse().ok()?,
        })
    }
}

impl Line {
    fn read(text: &str) -> Option<Line> {
        let [token, permits, until, ..] = text.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        Some(Line {
            token: token.to_owned(),
            permits: permits.parse().ok()?,
            until: until.parse().ok()?,
        })
    }
}

/// A waiter that was overtaken this often is first.
const MOST_OVERTAKEN: u32 = 16;

/// One entry of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: String,
    /// Whether it has a listener, and whether that is proven to be reachable.
    pub(crate) has_listener: bool,
    pub(crate) proven: bool,
    pub(crate) priority: i64,
    pub(crate) wants: u32,
    /// `None`: it does not age.
    pub(crate) overtaken: Option<u32>,
    /// How many releases have woken another waiter instead, because this one may be unreachable.
    pub(crate) passed: u32,
}

impl Entry {
    fn read(text: &str) -> Option<Entry> {
        let fields: Vec<&str> = text.split('#').collect();
        let field = |at: usize, unsaid: &'static str| fields.get(at).copied().unwrap_or(unsaid);
        Some(Entry {
            has_listener: field(0, "-") != "-",
            proven: !field(0, "-").starts_with(['-', '?']),
            id: (*fields.get(1)?).to_owned(),
            priority: fields.get(2)?.parse().ok()?,
            passed: field(3, "0").parse().ok()?,
            wants: field(4, "1").parse().ok()?,
            overtaken: if field(5, "0") == "-" { None } else { Some(field(5, "0").parse().ok()?) },
        })
    }

    /// Whether it may be for any waiter of its process that waits in line.
    pub(crate) fn is_in_line(&self) -> bool {
        self.wants == 1 && self.priority == 0 && self.overtaken.is_some()
    }

    /// Whether being overtaken that many times more puts it first.
    pub(crate) fn may_age(&self, times: usize) -> bool {
        self.overtaken.is_some_and(|often| {
            often < MOST_OVERTAKEN && often as usize + times >= MOST_OVERTAKEN as usize
        })
    }

    /// The rank: higher ranks come first.
    pub(crate) fn rank(&self) -> i64 {
        if self.overtaken.is_some_and(|often| often >= MOST_OVERTAKEN) {
            i64::MAX
        } else {
            self.priority
        }
    }
}

/// A queue's entries, in the order in which they are stored.
pub(crate) fn queue(value: &[u8]) -> Option<Vec<Entry>> {
    let text = std::str::from_utf8(value).ok()?;
    text.split_terminator('\n').map(Entry::read).collect()
}

/// The indices of the entries, in the order in which they are to be woken.
pub(crate) fn in_order(queue: &[Entry]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..queue.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(queue[at].rank()));
    order
}
