//! The queue on the server: the item beside the lock that lists the waiters.
//!
//! The queue is advisory. A waiter joins by one atomic append. Leaving, and removing the entry of a
//! woken waiter, is a compare-and-set that identifies waiters by their ids, never by their
//! position: it therefore does not matter which process removes an entry, how often, or what
//! happened in between.

use std::time::Duration;

use super::entries::{self, Draft, Entry};

use super::local::WakeSummary;
use super::policy::QueueView;
use super::wake::{Delivery, Wake};
use crate::cas_backoff::back_off;
use crate::error::{Error, ErrorKind, Result};
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::notify::{Successors, WakeMessage};
use crate::store::{Expiry, Failure, Item, Op, Reply, Returns};
use crate::target::Target;
use crate::wait_id::WaitId;

/// The TTL of a queue. Waiters that wait for longer rewrite it.
const LIFE: Duration = Duration::from_secs(300);
/// The delay of a waiter that is woken behind a waiter without a listener. The latter polls every
/// now and then, and should find the lock free most of the time.
const AFTER_UNREACHABLE: Duration = Duration::from_millis(20);
/// The delay of a waiter that is woken only to supervise another waiter's reservation. No other
/// waiter is woken with so long a delay: only a supervising waiter keeps its entry in the queue.
pub(super) const WATCH: Duration = Duration::from_millis(25);
/// How many dead waiters are passed over at once.
const MOST_DEAD: usize = 8;
/// How often a change is retried because another client was faster.
const ROUNDS: usize = 10;
/// The same for removing entries that no waiter uses any more, and entries of woken waiters for
/// permits.
const LEAVES: usize = 40;

/// A queue, identified by its key.
#[derive(Clone, Copy)]
pub(crate) struct Queue<'a> {
    pub(crate) target: &'a Target,
    /// The key of the queue itself.
    pub(crate) key: &'a Key,
}

/// The capacity that is available now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    /// How many permits are available: 1 for a mutex.
    pub(crate) permits: u32,
    /// Whether other releasers may be waking waiters at the same time.
    pub(crate) shared: bool,
}

impl Capacity {
    /// A mutex without a holder.
    pub(crate) const MUTEX: Capacity = Capacity { permits: 1, shared: false };
}

impl Queue<'_> {
    /// Joins the queue, and runs `inspection` after the join in the same packet. Returns how many
    /// waiters are before this one, and the reply to `inspection`. `behind`: the number of waiters
    /// a moment ago; if given, the entries are not counted.
    pub(crate) fn join(
        &self,
        line: &[u8],
        id: WaitId,
        front: bool,
        behind: Option<usize>,
        inspection: Op<'_>,
    ) -> std::result::Result<(usize, Reply), Failure> {
        let key = self.key;
        let add = Op::add(key, b"", EXPIRY, Returns::Version);
        let enter =
            if front { Op::Prepend { key, value: line } } else { Op::Append { key, value: line } };
        if let Some(before) = behind {
            let mut replies = self.target.run(&[enter, inspection])?.into_iter();
            if let (Some(Reply::Written), Some(seen)) = (replies.next(), replies.next()) {
                return Ok((before, seen));
            }
        }
        let ops = [add, enter, Op::get(key), inspection];
        // Most of the time a queue exists already.
        for ops in [&ops[1..], &ops, &ops] {
            let mut replies = self.target.run(ops)?.into_iter().rev();
            let (seen, queue, entered) = (replies.next(), replies.next(), replies.next());
            if let (Some(seen), Some(Reply::Written)) = (seen, entered) {
                let before = match &queue {
                    Some(Reply::Value(item)) => {
                        self.check(item, line, front)?;
                        position(&item.value, &[id])
                    }
                    _ => None,
                };
                // The entry may be gone already: its waiter was woken, or the queue was lost.
                return Ok((before.unwrap_or(0), seen));
            }
        }
        Err(Failure {
            error: Error::new(ErrorKind::Unknown, "The queue of waiters is lost again and again."),
            sent: true,
        })
    }

    /// Fails if the entry `line` was added to a text that another program stores in place of the
    /// queue. The text is restored, unless more has been changed since.
    fn check(&self, item: &Item, line: &[u8], front: bool) -> std::result::Result<(), Failure> {
        let text = &item.value[..];
        let others = if front { text.strip_prefix(line) } else { text.strip_suffix(line) };
        if entries::is_queue(others.unwrap_or(text)) {
            return Ok(());
        }
        if let Some(value) = others {
            let (key, version) = (self.key, item.version);
            let (expiry, returns) = (Expiry::Unchanged(item.remaining), Returns::Nothing);
            let _ = self.target.one(Op::CompareAndSet { key, version, value, expiry, returns });
        }
        let text = format!(
            "The item {} is not memlock's: another program stores something there. Delete it, or choose \
             another prefix.",
            self.key
        );
        Err(Failure { error: Error::protocol(text), sent: true })
    }

    /// The queue as it is now, if there is one.
    fn read(&self) -> Option<Item> {
        let item = self.target.get_other(self.key).ok().flatten()?;
        entries::is_queue(&item.value).then_some(item)
    }

    /// The position of this waiter, the reply to `inspection` if there is one, or both. A queue in
    /// the second half of its TTL is rewritten.
    pub(crate) fn inspect(
        &self,
        ids: &[WaitId],
        queue: bool,
        inspection: Option<Op<'_>>,
    ) -> Result<(Option<QueueView>, Option<Reply>)> {
        let ops: Vec<Op<'_>> =
            queue.then_some(Op::get(self.key)).into_iter().chain(inspection).collect();
        let mut replies = self.target.read(&ops)?.into_iter();
        if !queue {
            return Ok((None, replies.next()));
        }
        let view = match replies.next() {
            Some(Reply::Value(item)) if entries::is_queue(&item.value) => {
                if item.remaining.is_some_and(|left| left < LIFE / 2) {
                    let value = entries::without(&item.value, &[]);
                    let _ = self.target.run(&[self.compare_and_set(&item, &value)]);
                }
                let gone = || QueueView::Removed { waiters: entries::waiters(&item.value).count() };
                // A releaser that removes the last entry wakes this waiter, though an earlier entry
                // may still be in the queue.
                let last = ids.last().and_then(|&last| position(&item.value, &[last]));
                let place = last.and_then(|_| position(&item.value, ids));
                place.map_or_else(gone, QueueView::Behind)
            }
            _ => QueueView::Lost,
        };
        Ok((Some(view), replies.next()))
    }

    /// Removes the entries `ids`, and inspects the target afterwards: a releaser that woke this
    /// waiter in between relies on it, so if the target is free, the next waiter has to be woken.
    /// Returns the reply to the last inspection.
    pub(crate) fn leave(
        &self,
        ids: &[WaitId],
        inspection: Op<'_>,
    ) -> std::result::Result<Option<Reply>, Failure> {
        for round in 0..LEAVES {
            let item = match self.target.one(Op::get(self.key))? {
                Reply::Value(item)
                    if entries::is_queue(&item.value) && position(&item.value, ids).is_some() =>
                {
                    item
                }
                _ => return self.target.one(inspection).map(Some),
            };
            let rest = entries::without(&item.value, ids);
            let mut replies = self.target.run(&[self.compare_and_set(&item, &rest), inspection])?;
            let seen = replies.pop();
            if replies.pop() != Some(Reply::VersionMismatch) {
                return Ok(seen);
            }
            back_off(&self.target.context, round)
                .map_err(|error| Failure { error, sent: false })?;
        }
        let text = "The queue of waiters was written by others each time.";
        Err(Failure { error: Error::crowded(text), sent: true })
    }

    /// Wakes the first waiter that is not one of `ours`, if the capacity admits it, and removes its
    /// entry and `ours`. `queue` is the queue as it was read. A waiter that is found dead is
    /// removed as well, and the next one is woken. A waiter that may not receive the wake-up stays
    /// in the queue for some releases, so that it can learn by polling that its turn has come, and
    /// the waiter behind it is woken with a short delay. After that, a mutex is reserved for the
    /// waiter.
    ///
    /// The wake-up is sent before the queue is written, so that the next waiter works while this
    /// process writes. But if an entry of this process is still in the queue, the releaser that
    /// woke this process has not written the queue yet. The next waiter might then finish before
    /// either of them has written, and would wake the waiter of that leftover entry instead of the
    /// one after it. In that case the queue is written first.
    ///
    /// Even so, an entry before `ours` may belong to a waiter that had its turn earlier, because
    /// the releaser that woke that waiter is slow to write. The first waiter behind `ours` is then
    /// woken, too; but only after a short hold, since after a longer one that write has long
    /// finished, and the waiter in front would be passed over. The entry of the waiter behind is
    /// removed as well: if that waiter found its entry in the queue at its release, it would again
    /// wake the waiter behind it first, and the waiters in front would never have their turn.
    pub(crate) fn wake_next(
        &self,
        queue: Item,
        capacity: Capacity,
        ours: &[WaitId],
        waker: &dyn Wake,
    ) -> WakeSummary {
        if !entries::is_queue(&queue.value) {
            return WakeSummary::default();
        }
        let mut summary =
            WakeSummary { ours: position(&queue.value, ours).is_some(), ..WakeSummary::default() };
        let may_be_next = summary.ours && waker.is_early();
        let behind_us = first_behind_us(&queue.value, ours)
            .filter(|entry| may_be_next && waker.is_heard_by(entry))
            .filter(|entry| waker.wake(entry, WakeMessage::default()) == Delivery::Sent)
            .map(|entry| entry.id);
        let mut woken: Option<WaitId> = None;
        // The waiters for which the target may be reserved: this one, and the waiter that it wakes.
        let is_unheard = |entry: &Entry<'_>| !entry.proven && ours.contains(&entry.id);
        let mut unheard: Vec<WaitId> =
            entries::waiters(&queue.value).filter(is_unheard).map(|entry| entry.id).collect();
        // The entries `ours`, and those of waiters that are found dead.
        let mut gone = ours.to_vec();
        let (mut queue, mut kept) = (queue, false);
        for round in 1..=ROUNDS {
            let write_first = position(&queue.value, ours).is_some() && round < ROUNDS;
            let (mut next, mut left) = (None, None);
            while woken.is_none() && !kept && gone.len() < ours.len() + MOST_DEAD {
                let turn = whose_turn(&queue.value, &gone, capacity, waker);
                summary.others |= turn.others;
                left = turn.left.map(|left| left.id);
                if let Some(left) = turn.left.filter(|left| left.address.is_some() && round == 1) {
                    waker.wake(&left, WakeMessage::default());
                }
                let after = if left.is_some() { AFTER_UNREACHABLE } else { Duration::ZERO };
                next = turn
                    .next
                    .map(|next| (next, WakeMessage { after, successors: turn.successors }));
                let Some((entry, message)) = next.filter(|_| !write_first) else { break };
                match waker.wake(&entry, message) {
                    Delivery::Sent => {
                        woken = Some(entry.id);
                        if !waker.is_heard_by(&entry) {
                            unheard.push(entry.id);
                            wake_a_watcher(&queue.value, &gone, entry.id, waker);
                        }
                    }
                    Delivery::Gone => gone.push(entry.id),
                    Delivery::Unavailable => (kept, next) = (true, None),
                }
            }
            next = next.filter(|_| !kept);
            // A waiter for which the target has to be reserved stays in the queue until that is
            // done: otherwise it would not learn that it has to join again.
            let reserve_later =
                write_first && next.is_some_and(|(next, _)| !waker.is_heard_by(&next));
            next = next.filter(|_| !reserve_later);
            let called = woken.or(next.map(|(next, _)| next.id));
            // A waiter that was woken ahead has its turn, though another waiter may have joined in
            // front of it.
            let ahead = waker.woken().into_iter().chain(behind_us);
            let off: Vec<WaitId> = gone.iter().copied().chain(called).chain(ahead).collect();
            let rest = entries::after(&queue.value, &off, left, called);
            if rest == queue.value {
                break;
            }
            let written = self.target.one(self.compare_and_set(&queue, &rest));
            summary.stuck = written.is_err();
            let again = match (next, woken, &written) {
                (_, _, Ok(Reply::VersionMismatch)) => true,
                (None, None, Ok(_)) if reserve_later => {
                    // This process has removed the entries `ours`.
                    unheard.clear();
                    true
                }
                (Some((next, message)), None, _) => match waker.wake(&next, message) {
                    Delivery::Gone => {
                        gone.push(next.id);
                        true
                    }
                    delivery => {
                        woken = (delivery == Delivery::Sent).then_some(next.id);
                        false
                    }
                },
                _ => false,
            };
            if !again {
                break;
            }
            let Some(item) = self.read() else { break };
            queue = item;
            let is_off = |id| position(&queue.value, &[id]).is_none();
            if unheard.iter().any(|&id| is_off(id)) {
                // That waiter had its turn without this wake-up, or this process had its own: no
                // waiter claims a reservation made since.
                waker.withdraw(&unheard);
                woken = woken.filter(|id| !unheard.contains(id));
            }
        }
        summary
    }

    /// As [`Queue::wake_next`], for several permits: wakes the first waiters as long as the
    /// capacity admits them, until they request as many permits as were freed. The processes that
    /// freed the rest wake the other waiters. A waiter that may not receive the wake-up stays in
    /// the queue for some releases, so that it can learn by polling that its turn has come, and the
    /// waiter behind it is woken with a short delay. However, permits that were free before may
    /// have been held back for a waiter that requests several, and no other process would wake
    /// waiters for the rest of them. All entries of woken waiters are removed in one write: while
    /// many waiters join, each write of the queue has to be retried several times.
    ///
    /// No waiter is woken twice: a waiter that was woken in vain, and is in front again under
    /// another id, has inspected the target itself. A waiter that has since joined at the end is
    /// woken: it may have seen the permits reserved by a waiter that holds them by now.
    pub(crate) fn wake_several(
        &self,
        queue: Item,
        capacity: u32,
        freed: u32,
        ours: &[WaitId],
        waker: &dyn Wake,
    ) -> WakeSummary {
        if !entries::is_queue(&queue.value) {
            return WakeSummary::default();
        }
        let mut known: Vec<WaitId> = entries::waiters(&queue.value).map(|entry| entry.id).collect();
        let mut summary =
            WakeSummary { ours: position(&queue.value, ours).is_some(), ..WakeSummary::default() };
        let wake = |entry: &Entry<'_>, after| {
            waker.wake(entry, WakeMessage { after, ..WakeMessage::default() }) != Delivery::Gone
        };
        let mut woken: Vec<(WaitId, u32)> = Vec::new();
        // Whether the first waiter, which may not receive messages, was sent one all the same.
        let mut is_first_notified = false;
        // The entries `ours`, and those of waiters that are found dead.
        let mut gone = ours.to_vec();
        let mut queue = queue;
        for round in 1..=LEAVES {
            let mut draft = Draft::of(&queue.value);
            let write_first = round < ROUNDS && ours.iter().any(|&id| draft.has(id));
            // Waiters whose entries are gone were woken by another releaser as well. That releaser
            // relies on this one to wake others.
            woken.retain(|&(id, _)| draft.has(id));
            let has_many = draft.any(|entry| entry.permits > 1);
            gone.iter().for_each(|&id| draft.remove(id));
            woken.iter().for_each(|&(id, _)| draft.wake(id));
            let taken: u32 = woken.iter().map(|&(_, permits)| permits).sum();
            let mut left_over = capacity.saturating_sub(taken);
            let mut owed = if has_many { capacity } else { freed }.saturating_sub(taken);
            summary.others |= draft.first().is_some();
            // The waiters to wake once their entries are removed.
            let mut later: Vec<(WaitId, Duration)> = Vec::new();
            while let Some(first) = draft.first() {
                let fits = |entry: &Entry<'_>| entry.permits <= left_over;
                if left_over == 0 || owed == 0 || !known.contains(&first.id) || !fits(&first) {
                    break;
                }
                let is_left = !waker.is_heard_by(&first) && waker.passes(&first);
                if is_left
                    && first.address.is_some()
                    && !std::mem::replace(&mut is_first_notified, true)
                {
                    waker.wake(&first, WakeMessage::default());
                }
                if is_left {
                    draft.pass(first.id);
                }
                let behind = || draft.first_but(Some(first.id), |entry| waker.is_heard_by(entry));
                // The first release is for this waiter alone, since it may poll only some time
                // later.
                let next = match is_left {
                    true if first.passed == 0 => None,
                    true => behind().filter(fits),
                    false => Some(first),
                };
                let Some(next) = next else { break };
                let after = if is_left { AFTER_UNREACHABLE } else { Duration::ZERO };
                if !write_first && !wake(&next, after) {
                    gone.push(next.id);
                    draft.remove(next.id);
                    if gone.len() >= ours.len() + MOST_DEAD {
                        break;
                    }
                    continue;
                }
                draft.wake(next.id);
                left_over = left_over.saturating_sub(next.permits);
                owed = owed.saturating_sub(next.permits);
                if write_first {
                    later.push((next.id, after));
                } else {
                    woken.push((next.id, next.permits));
                }
                if mutation::has(Mutation::ForgetTheRest) {
                    break;
                }
            }
            summary.waiting = if draft.any(|entry| entry.permits > 1 || entry.priority != 0) {
                0
            } else {
                draft.len()
            };
            let rest = draft.encode();
            if rest == queue.value {
                break;
            }
            let written = self.target.one(self.compare_and_set(&queue, &rest));
            summary.stuck = written.is_err();
            let mut again = matches!(written, Ok(Reply::VersionMismatch));
            if !again {
                for next in entries::waiters(&queue.value) {
                    let after = later.iter().find(|(id, _)| *id == next.id);
                    if after.is_some_and(|&(_, after)| !wake(&next, after)) {
                        gone.push(next.id);
                        again = gone.len() < ours.len() + MOST_DEAD;
                    }
                }
            }
            if !again || back_off(&self.target.context, round).is_err() {
                break;
            }
            let Some(item) = self.read() else { break };
            queue = item;
            let ids = entries::waiters(&queue.value).map(|entry| entry.id);
            let at_the_end = ids.skip_while(|id| !known.contains(id));
            let has_joined: Vec<WaitId> = at_the_end.filter(|id| !known.contains(id)).collect();
            known.extend(has_joined);
        }
        summary
    }

    fn compare_and_set<'b>(&'b self, item: &Item, value: &'b [u8]) -> Op<'b> {
        Op::CompareAndSet {
            key: self.key,
            version: item.version,
            value,
            expiry: EXPIRY,
            returns: Returns::Version,
        }
    }
}

const EXPIRY: Expiry = Expiry::After(LIFE);

/// The waiter whose turn is next.
struct NextTurn<'a> {
    /// Whether there are waiters other than `ours`.
    others: bool,
    /// The first waiter, if it may not receive the wake-up and is left in the queue for now.
    left: Option<Entry<'a>>,
    /// The waiter to wake.
    next: Option<Entry<'a>>,
    /// The waiters that can be woken after it.
    successors: Successors,
}

fn whose_turn<'a>(
    queue: &'a [u8],
    ours: &[WaitId],
    capacity: Capacity,
    waker: &dyn Wake,
) -> NextTurn<'a> {
    let others = || entries::in_order(queue).into_iter().filter(|entry| !ours.contains(&entry.id));
    let fits = |entry: &Entry<'_>| entry.permits <= capacity.permits;
    // A waiter that was passed over often enough has its turn whatever its position: waiters that
    // are woken instead join in front of it if they are too late.
    let overdue = |entry: &Entry<'_>| {
        entry.passed > 0 && !waker.is_heard_by(entry) && !waker.passes(entry) && fits(entry)
    };
    if let Some(overdue) = others().find(overdue) {
        return NextTurn {
            others: true,
            left: None,
            next: Some(overdue),
            successors: Successors::default(),
        };
    }
    let mut others = others();
    let first = others.next();
    if !first.as_ref().is_some_and(fits) {
        return NextTurn {
            others: first.is_some(),
            left: None,
            next: None,
            successors: Successors::default(),
        };
    }
    let left = first.filter(|first| !waker.is_heard_by(first) && waker.passes(first));
    let next = match left {
        Some(_) => others.find(|entry| waker.is_heard_by(entry)),
        None => first,
    };
    let callable =
        others.map_while(|entry| Some((entry.address.filter(|_| entry.proven)?, entry.id)));
    let successors = callable.collect();
    NextTurn { others: first.is_some(), left, next: next.filter(fits), successors }
}

/// Wakes a following waiter to supervise a reservation, because the waiter that it is for may be
/// dead. The supervising waiter must be alive and certain to receive the message.
fn wake_a_watcher(queue: &[u8], gone: &[WaitId], reserved: WaitId, waker: &dyn Wake) {
    let waiters = entries::in_order(queue);
    let is_behind = |entry: &&Entry<'_>| entry.id != reserved && !gone.contains(&entry.id);
    let hearing = waiters.iter().filter(is_behind).filter(|entry| waker.is_heard_by(entry));
    let message = WakeMessage { after: WATCH, ..WakeMessage::default() };
    for watcher in hearing.take(MOST_DEAD) {
        if waker.wake(watcher, message) != Delivery::Gone {
            break;
        }
    }
}

/// The first waiter behind the last of `ours`, if other waiters are before that entry.
fn first_behind_us<'a>(queue: &'a [u8], ours: &[WaitId]) -> Option<Entry<'a>> {
    let waiters = entries::in_order(queue);
    let is_ours = |entry: &Entry<'_>| ours.contains(&entry.id);
    let last = waiters.iter().rposition(is_ours)?;
    let others = waiters[..last].iter().any(|entry| !is_ours(entry));
    waiters.get(last + 1).copied().filter(|_| others)
}

/// How many waiters are before the first of `ids`.
fn position(queue: &[u8], ids: &[WaitId]) -> Option<usize> {
    entries::in_order(queue).iter().position(|entry| ids.contains(&entry.id))
}
