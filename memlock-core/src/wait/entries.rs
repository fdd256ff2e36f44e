//! The text of a queue: the waiters, their order, and where each can be woken.
//!
//! ```text
//! 10.0.0.7:40123#9f8e7d6c5b4a3210#0      one waiter per line, the first one is next
//! [fd00::7]:40123#0123456789abcdef#0
//! ?10.0.0.8:40123#00000000000000a9#0     a waiter that may not receive all messages
//! redis:wake-7#00000000000000a8#0        a waiter on another transport, for later versions
//! -#00000000000000aa#0                   a waiter without a listener
//! -#00000000000000ab#0#7                 another one, which 7 releases have passed over
//! 10.0.0.7:40124#00000000000000ac#-5#0#2#3   low priority, requests 2 permits, overtaken 3 times
//! address        wait-id          priority # passed # permits # overtaken
//! ```
//!
//! A waiter of higher priority comes before one of lower priority; among equals, the order of the
//! lines counts. A waiter that was overtaken [`MOST_OVERTAKEN`] times comes before all others,
//! unless it wrote `-` in that field. Missing last fields are 0, 1 and 0.
//!
//! Further fields belong to later versions, and are preserved. A line that cannot be read is
//! dropped by the next write. Nothing in this module does I/O.

use crate::mutation::{self, Mutation};
use crate::notify::WakeAddress;
use crate::wait_id::WaitId;

/// A queue of this length takes no further waiters.
pub const MOST_WAITERS: usize = 512;

/// A waiter that was overtaken this often by waiters of higher priority is next.
pub const MOST_OVERTAKEN: u32 = 16;

/// The default values of the last three fields.
const UNSAID: [&[u8]; 3] = [b"0", b"1", b"0"];
/// The field that counts the releases that passed the waiter over.
const PASSED: usize = 3;
/// The field that counts how often the waiter was overtaken.
const OVERTAKEN: usize = 5;

/// The prefix of an address that may not receive all messages.
const UNPROVEN: &[u8] = b"?";

/// The request of a waiter, as other processes need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Higher comes first.
    pub priority: i64,
    /// How many permits the waiter requests at once.
    pub permits: u32,
    /// Whether the waiter is next once it was overtaken often enough.
    pub ages: bool,
}

impl Default for Request {
    fn default() -> Request {
        Request { priority: 0, permits: 1, ages: true }
    }
}

/// The entry of one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where the waiter can be woken; `None` if it has no listener.
    pub address: Option<WakeAddress>,
    /// Whether messages to that address are known to arrive.
    pub proven: bool,
    /// The id of this entry.
    pub id: WaitId,
    /// How many releases have passed this waiter over.
    pub passed: u32,
    /// Higher comes first.
    pub priority: i64,
    /// How many permits the waiter requests at once.
    pub permits: u32,
    /// How often the waiter was overtaken; `None` if it does not age.
    pub overtaken: Option<u32>,
    line: &'a [u8],
}

impl Entry<'_> {
    /// The rank by which the queue is ordered.
    fn rank(&self) -> i64 {
        let old = self.overtaken.is_some_and(|often| often >= MOST_OVERTAKEN);
        if old { i64::MAX } else { self.priority }
    }
}

/// The line of a new entry.
pub fn line(address: Option<WakeAddress>, id: WaitId, request: Request) -> Vec<u8> {
    let address = address.map_or_else(|| "-".to_owned(), |address| address.to_string());
    let Request { priority, permits, ages } = request;
    if request == Request::default() {
        format!("{address}#{id}#0\n")
    } else {
        format!("{address}#{id}#{priority}#0#{permits}#{}\n", if ages { "0" } else { "-" })
    }
    .into_bytes()
}

/// The line of a new entry whose waiter may not receive all messages.
pub fn unproven_line(address: Option<WakeAddress>, id: WaitId, request: Request) -> Vec<u8> {
    let line = line(address, id, request);
    if address.is_some() { [UNPROVEN, &line].concat() } else { line }
}

/// The waiters, the next one first.
pub fn in_order(queue: &[u8]) -> Vec<Entry<'_>> {
    let mut waiters: Vec<Entry<'_>> = waiters(queue).collect();
    if mutation::has(Mutation::IgnorePriority) {
        return waiters;
    }
    waiters.sort_by_key(|entry| std::cmp::Reverse(entry.rank()));
    waiters
}

/// Whether this is a queue, rather than a text of another program, which is left as it is: a queue begins
/// with an entry, or is empty.
pub fn is_queue(text: &[u8]) -> bool {
    text.split_inclusive(|&byte| byte == b'\n').next().is_none_or(|line| entry(line).is_some())
}

/// The waiters in the order of their lines.
pub fn waiters(queue: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    queue.split_inclusive(|&byte| byte == b'\n').filter_map(entry)
}

/// A draft of a queue: read once and written once, however many entries are removed.
pub(crate) struct Draft<'a> {
    /// Each entry as it was read and as it is to be written, in the order of the lines.
    lines: Vec<(Entry<'a>, Entry<'a>)>,
}

impl<'a> Draft<'a> {
    pub(crate) fn of(queue: &'a [u8]) -> Draft<'a> {
        Draft { lines: waiters(queue).map(|entry| (entry, entry)).collect() }
    }

    /// The first waiter.
    pub(crate) fn first(&self) -> Option<Entry<'a>> {
        self.first_but(None, |_| true)
    }

    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The first waiter other than `but` that satisfies `may`.
    pub(crate) fn first_but(
        &self,
        but: Option<WaitId>,
        may: impl Fn(&Entry<'a>) -> bool,
    ) -> Option<Entry<'a>> {
        let entries = self.lines.iter().map(|(_, entry)| entry);
        let others = entries.filter(|entry| Some(entry.id) != but && may(entry));
        let rank = |entry: &Entry<'_>| {
            if mutation::has(Mutation::IgnorePriority) { 0 } else { entry.rank() }
        };
        // Among equals, the earlier line.
        others
            .copied()
            .reduce(|first, entry| if rank(&entry) > rank(&first) { entry } else { first })
    }

    pub(crate) fn has(&self, id: WaitId) -> bool {
        self.any(|entry| entry.id == id)
    }

    pub(crate) fn any(&self, is_meant: impl Fn(&Entry<'a>) -> bool) -> bool {
        self.lines.iter().any(|(_, entry)| is_meant(entry))
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, gone: WaitId) {
        self.lines.retain(|(_, entry)| entry.id != gone);
    }

    /// Removes the entry of a woken waiter, and counts that it overtook the waiters before it.
    pub(crate) fn wake(&mut self, woken: WaitId) {
        let Some(place) = self.lines.iter().position(|(_, entry)| entry.id == woken) else {
            return;
        };
        let (_, woken) = self.lines.remove(place);
        for (_, entry) in self.lines.iter_mut().take(place) {
            if entry.rank() < woken.rank() && !mutation::has(Mutation::NobodyAges) {
                entry.overtaken = entry.overtaken.map(|often| often.saturating_add(1));
            }
        }
    }

    /// Counts one more release that passed this waiter over.
    pub(crate) fn pass(&mut self, passed: WaitId) {
        for (_, entry) in self.lines.iter_mut().filter(|(_, entry)| entry.id == passed) {
            entry.passed = entry.passed.saturating_add(1);
        }
    }

    /// The queue as it is to be written.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut queue = Vec::new();
        for (before, now) in &self.lines {
            let mut line = before.line.to_vec();
            if now.passed != before.passed {
                line = with_field(&line, PASSED, now.passed);
            }
            if let Some(often) = now.overtaken.filter(|_| now.overtaken != before.overtaken) {
                line = with_field(&line, OVERTAKEN, often);
            }
            queue.extend(line);
        }
        queue
    }
}

/// The queue without these waiters, and without unreadable lines.
pub fn without(queue: &[u8], gone: &[WaitId]) -> Vec<u8> {
    waiters(queue)
        .filter(|entry| !gone.contains(&entry.id))
        .flat_map(|entry| entry.line)
        .copied()
        .collect()
}

/// The queue without the waiters `gone`. Counts that `woken` overtook the waiters before it, and
/// that one more release passed over `passed`, and all waiters without an address that `woken`
/// overtook.
pub fn after(
    queue: &[u8],
    gone: &[WaitId],
    passed: Option<WaitId>,
    woken: Option<WaitId>,
) -> Vec<u8> {
    let woken = woken.and_then(|id| waiters(queue).enumerate().find(|(_, entry)| entry.id == id));
    let count = |(place, entry): (usize, Entry<'_>)| {
        let behind = woken.as_ref().filter(|(at, _)| place < *at).map(|(_, woken)| woken);
        let overtaken = behind.is_some_and(|woken| entry.rank() < woken.rank());
        let is_passed = passed == Some(entry.id)
            || passed.is_some() && behind.is_some() && entry.address.is_none();
        match entry.overtaken {
            _ if is_passed => with_field(entry.line, PASSED, entry.passed.saturating_add(1)),
            Some(often) if overtaken && !mutation::has(Mutation::NobodyAges) => {
                with_field(entry.line, OVERTAKEN, often.saturating_add(1))
            }
            _ => entry.line.to_vec(),
        }
    };
    waiters(queue)
        .enumerate()
        .filter(|(_, entry)| !gone.contains(&entry.id))
        .flat_map(count)
        .collect()
}

/// The line with another number in one of its last fields.
fn with_field(line: &[u8], field: usize, number: u32) -> Vec<u8> {
    let number = number.to_string();
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut fields: Vec<&[u8]> = line.split(|&byte| byte == b'#').collect();
    while fields.len() <= field {
        fields.push(UNSAID[(fields.len() - PASSED).min(UNSAID.len() - 1)]);
    }
    fields[field] = number.as_bytes();
    [&fields.join(&b'#')[..], b"\n"].concat()
}

fn entry(line: &[u8]) -> Option<Entry<'_>> {
    let mut fields = line.strip_suffix(b"\n")?.split(|&byte| byte == b'#');
    let (address, proven) = match fields.next()? {
        b"-" => (None, false),
        text => {
            let unproven = text.strip_prefix(UNPROVEN);
            let text = unproven.unwrap_or(text);
            match WakeAddress::parse(text) {
                Some(address) => (Some(address), unproven.is_none()),
                None if WakeAddress::is_foreign(text) => (None, false),
                None => return None,
            }
        }
    };
    let id = WaitId::parse(fields.next()?)?;
    let priority = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let mut number = |unsaid| match fields.next() {
        Some(b"-") => None,
        Some(field) => Some(
            std::str::from_utf8(field).ok().and_then(|text| text.parse().ok()).unwrap_or(unsaid),
        ),
        None => Some(unsaid),
    };
    let (passed, permits) = (number(0).unwrap_or(0), number(1).unwrap_or(1).max(1));
    Some(Entry { address, proven, id, passed, priority, permits, overtaken: number(0), line })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_waiter_on_another_transport_stays_and_has_no_listener_here() {
        let queue = b"redis:wake-7#000000000000000a#0\n?redis:wake-8#000000000000000b#0\n";
        let read = in_order(queue);
        assert_eq!(read.iter().map(|entry| entry.id.0).collect::<Vec<_>>(), [10, 11]);
        assert!(read.iter().all(|entry| entry.address.is_none() && !entry.proven));
        assert_eq!(without(queue, &[]), queue);
        let passed = after(queue, &[WaitId(11)], Some(WaitId(10)), None);
        assert_eq!(passed, b"redis:wake-7#000000000000000a#0#1\n");
    }

    #[test]
    fn a_queue_can_be_read_by_a_person() {
        let notifier =
            ["10.0.0.7:40123", "[fd00::7]:40123"].map(|text| WakeAddress::parse(text.as_bytes()));
        assert_eq!(
            line(notifier[0], WaitId(10), Request::default()),
            b"10.0.0.7:40123#000000000000000a#0\n"
        );
        assert_eq!(
            line(notifier[1], WaitId(10), Request::default()),
            b"[fd00::7]:40123#000000000000000a#0\n"
        );
        assert_eq!(line(None, WaitId(u64::MAX), Request::default()), b"-#ffffffffffffffff#0\n");
    }

    #[test]
    fn only_a_well_formed_address_of_one_program_is_woken() {
        for bad in [
            "10.0.0.7#000000000000000a#0\n",
            "10.0.0.7:0#000000000000000a#0\n",
            "0.0.0.0:9#000000000000000a#0\n",
            "255.255.255.255:9#000000000000000a#0\n",
            "224.0.0.1:9#000000000000000a#0\n",
            "[ff02::1]:9#000000000000000a#0\n",
            "[::ffff:224.0.0.1]:9#000000000000000a#0\n",
            "[::ffff:0.0.0.0]:9#000000000000000a#0\n",
            "Localhost:9#000000000000000a#0\n",
            "10.0.0.7:9#00000000000000A0#0\n",
            "10.0.0.7:9#a#0\n",
            "10.0.0.7:9#000000000000000a\n",
            "10.0.0.7:9#000000000000000a#high\n",
            "10.0.0.7:9#000000000000000a#0",
            "\n",
        ] {
            assert_eq!(waiters(bad.as_bytes()).count(), 0, "{bad:?}");
            assert_eq!(without(bad.as_bytes(), &[]), b"", "{bad:?}");
        }
        let later = b"10.0.0.7:9#000000000000000a#-7#more\n";
        assert_eq!(waiters(later).count(), 1);
        assert_eq!(without(later, &[]), later, "what a later version adds is kept");
    }

    #[test]
    fn a_text_of_another_program_is_no_queue() {
        let line = "10.0.0.7:9#000000000000000a#0\n";
        for foreign in
            ["theirs", "\n", "two\nlines\n", "{\"a\": 1}", "a#b#c\n", "0123456789abcdef theirs"]
        {
            assert!(!is_queue(foreign.as_bytes()), "{foreign:?}");
            let joined = [foreign, line].concat();
            assert!(!is_queue(joined.as_bytes()), "{joined:?}");
        }
        for queue in
            ["", line, "redis:wake-7#000000000000000a#0\n", "?10.0.0.8:9#00000000000000a9#0\n"]
        {
            assert!(is_queue(queue.as_bytes()), "{queue:?}");
            let joined = [queue, line, "a line of a later version\n"].concat();
            assert!(is_queue(joined.as_bytes()), "{joined:?}");
        }
    }

    #[test]
    fn releases_that_wait_for_one_in_vain_are_counted() {
        let queue = b"-#00000000000000aa#0\n-#00000000000000bb#-3#7\n".to_vec();
        let once = after(&queue, &[], Some(WaitId(0xaa)), None);
        assert_eq!(once, b"-#00000000000000aa#0#1\n-#00000000000000bb#-3#7\n");
        let twice = after(&once, &[WaitId(0xaa)], Some(WaitId(0xbb)), None);
        assert_eq!(twice, b"-#00000000000000bb#-3#8\n");
        assert_eq!(waiters(&twice).map(|entry| entry.passed).collect::<Vec<_>>(), [8]);
        let later = after(b"-#00000000000000aa#0#7#and#more\n", &[], Some(WaitId(0xaa)), None);
        assert_eq!(
            later, b"-#00000000000000aa#0#8#and#more\n",
            "what a later version adds is kept"
        );
    }

    #[test]
    fn higher_priority_comes_first_until_somebody_was_overtaken_often_enough() {
        let ids = |queue: &[u8]| in_order(queue).iter().map(|entry| entry.id.0).collect::<Vec<_>>();
        let request = |priority, ages| Request { priority, permits: 2, ages };
        let mut queue = Vec::new();
        for (id, priority, ages) in
            [(1, -1, true), (2, 0, true), (3, 7, true), (4, i64::MIN, false), (5, 7, true)]
        {
            queue.extend(line(None, WaitId(id), request(priority, ages)));
        }
        assert_eq!(ids(&queue), [3, 5, 2, 1, 4]);
        for times in 1..=MOST_OVERTAKEN {
            queue = after(&queue, &[], None, Some(WaitId(5)));
            let counts: Vec<_> = waiters(&queue).map(|entry| entry.overtaken).collect();
            assert_eq!(counts, [Some(times), Some(times), Some(0), None, Some(0)]);
        }
        assert_eq!(ids(&queue), [1, 2, 3, 5, 4]);
        let plain = b"-#00000000000000aa#0\n-#00000000000000bb#3#0#1#0\n";
        let counted = after(plain, &[WaitId(0xbb)], None, Some(WaitId(0xbb)));
        assert_eq!(counted, b"-#00000000000000aa#0#0#1#1\n");
    }

    proptest! {
        #[test]
        fn waiters_come_back_in_their_order(ids in vec(any::<u64>(), 0..20), ports in vec(1_u16.., 20), gone: u64) {
            let address = |at: usize| (!at.is_multiple_of(3)).then(|| WakeAddress::udp(([10, 0, 0, 7], ports[at]).into()).unwrap());
            let queue: Vec<u8> = ids.iter().enumerate().flat_map(|(at, &id)| line(address(at), WaitId(id), Request::default())).collect();
            let read: Vec<_> = waiters(&queue).map(|entry| (entry.address, entry.id.0)).collect();
            let written: Vec<_> = ids.iter().enumerate().map(|(at, &id)| (address(at), id)).collect();
            prop_assert_eq!(read, written);
            let gone = ids.first().copied().unwrap_or(gone);
            let left = without(&queue, &[WaitId(gone)]);
            let left: Vec<u64> = waiters(&left).map(|entry| entry.id.0).collect();
            prop_assert_eq!(left, ids.into_iter().filter(|&id| id != gone).collect::<Vec<_>>());
        }

        #[test]
        fn a_release_in_vain_changes_one_count_and_nothing_else(
            lines in vec("-#[0-9a-f]{16}#-?[0-9]{1,3}(#[ -\"$-~]{0,9}){0,3}\n", 1..6), chosen: usize,
        ) {
            let queue = lines.concat().into_bytes();
            let before: Vec<Entry<'_>> = waiters(&queue).collect();
            prop_assert_eq!(before.len(), lines.len());
            let passed = before[chosen % before.len()].id;
            let counted = after(&queue, &[], Some(passed), None);
            let after: Vec<Entry<'_>> = waiters(&counted).collect();
            prop_assert_eq!(after.len(), lines.len());
            let fields = |entry: &Entry<'_>| -> Vec<Vec<u8>> {
                entry.line.strip_suffix(b"\n").unwrap().split(|&byte| byte == b'#').map(<[u8]>::to_vec).collect()
            };
            for (before, after) in before.iter().zip(&after) {
                let (mut expected, after) = (fields(before), fields(after));
                if before.id == passed {
                    expected.resize(expected.len().max(4), Vec::new());
                    expected[3] = before.passed.saturating_add(1).to_string().into_bytes();
                }
                prop_assert_eq!(expected, after);
            }
        }

        #[test]
        fn any_bytes_can_be_read(queue in vec(any::<u8>(), 0..200), text in "([0-9.:\\[\\]#a-f-]{0,40}\n){0,4}") {
            for queue in [&queue[..], text.as_bytes()] {
                let clean = without(queue, &[]);
                prop_assert_eq!(without(&clean, &[]), clean.clone());
                prop_assert_eq!(waiters(queue).collect::<Vec<_>>().len(), waiters(&clean).count());
            }
        }
    }
}
