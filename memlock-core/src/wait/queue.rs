//! The queue on the server: the item beside the lock that says who waits.
//!
//! It is advice and nothing else. Entering is one atomic append; leaving, and taking off the waiter that was rung, is a
//! compare-and-swap that names waiters by their ids, never by their position: so it does not matter who does it, how
//! often, or what happened in between.

use std::time::Duration;

use super::bell::{Behind, Ring};
use super::entries::{self, Entry, WaitId};
use super::plan::Stand;
use super::wake::{Delivery, Wake};
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::flaw::{self, Flaw};
use crate::lease::Ttl;
use crate::name::Key;
use crate::store::{Failure, Item, Op, Reply, Route};

/// How long a queue lives that nobody writes to. Waiters that wait for longer write it anew.
const LIFE: Duration = Duration::from_secs(300);
/// How much later the one behind a waiter without a bell is to come: that looks for itself every now and then, and should
/// find the lock free most of the time.
const BEHIND_THE_DEAF: Duration = Duration::from_millis(20);
/// How many of the dead are passed at once.
const MOST_DEAD: usize = 8;
/// How often a change is tried anew because somebody else was faster.
const ROUNDS: usize = 10;

/// A queue by its key.
#[derive(Clone, Copy)]
pub(crate) struct Queue<'a> {
    pub(crate) client: &'a Client,
    pub(crate) route: Route,
    pub(crate) key: &'a Key,
}

/// What can be had now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// How many of what is waited for: a mutex is one.
    pub(crate) permits: u32,
    /// Whether others may be handing on at the same time.
    pub(crate) shared: bool,
}

impl Room {
    /// A mutex that nobody has.
    pub(crate) const MUTEX: Room = Room { permits: 1, shared: false };
}

/// Who else was in the queue when the next one was rung.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HandedOn {
    /// How many the one wants that was rung.
    pub(crate) rung: Option<u32>,
    /// Others were waiting, of whom the first one's turn has come.
    pub(crate) others: bool,
    /// One of our own entries was still there.
    pub(crate) ours: bool,
    /// The queue could not be written: our entries may be there yet.
    pub(crate) stuck: bool,
}

impl Queue<'_> {
    /// Enters, and runs `look` behind it in the same packet: how many stand before us, and what `look` gave.
    pub(crate) fn join(
        &self,
        line: &[u8],
        id: WaitId,
        front: bool,
        look: Op<'_>,
    ) -> std::result::Result<(usize, Reply), Failure> {
        let key = self.key;
        let add = Op::Add { key, value: b"", ttl: life() };
        let enter = if front { Op::Prepend { key, value: line } } else { Op::Append { key, value: line } };
        let ops = [add, enter, Op::Get { key }, look];
        // There is a queue already, most of the time.
        for ops in [&ops[1..], &ops, &ops] {
            let mut replies = self.client.run(self.route, ops)?.into_iter().rev();
            let (seen, queue, entered) = (replies.next(), replies.next(), replies.next());
            if let (Some(seen), Some(Reply::Written)) = (seen, entered) {
                let before = match &queue {
                    Some(Reply::Value(item)) => position(&item.value, &[id]),
                    _ => None,
                };
                // It may be gone again already: rung, or the queue lost.
                return Ok((before.unwrap_or(0), seen));
            }
        }
        Err(Failure {
            error: Error::new(ErrorKind::Unknown, "The queue of waiters is lost again and again."),
            sent: true,
        })
    }

    /// Our place, what `look` gives if it is asked for, or both. A queue that would not live much longer is written
    /// anew.
    pub(crate) fn look(
        &self,
        ids: &[WaitId],
        queue: bool,
        look: Option<Op<'_>>,
    ) -> Result<(Option<Stand>, Option<Reply>)> {
        let ops: Vec<Op<'_>> = queue.then_some(Op::Get { key: self.key }).into_iter().chain(look).collect();
        let mut replies = self.client.read(self.route, &ops)?.into_iter();
        if !queue {
            return Ok((None, replies.next()));
        }
        let stand = match replies.next() {
            Some(Reply::Value(item)) => {
                if item.remaining.is_some_and(|left| left < LIFE / 2) {
                    let value = entries::without(&item.value, &[]);
                    let _ = self.client.run(self.route, &[self.swap(&item, &value)]);
                }
                let gone = || Stand::Gone { waiters: entries::waiters(&item.value).count() };
                position(&item.value, ids).map_or_else(gone, Stand::Behind)
            }
            _ => Stand::Lost,
        };
        Ok((Some(stand), replies.next()))
    }

    /// Takes our entries off, and runs `look` afterwards: whoever rang us in between relies on us, so if what we
    /// waited for is free, the next one is to be told. Gives what `look` gave last.
    pub(crate) fn leave(&self, ids: &[WaitId], look: Op<'_>) -> std::result::Result<Option<Reply>, Failure> {
        for _ in 0..ROUNDS {
            let item = match self.client.one(self.route, Op::Get { key: self.key })? {
                Reply::Value(item) if position(&item.value, ids).is_some() => item,
                _ => return self.client.one(self.route, look).map(Some),
            };
            let rest = entries::without(&item.value, ids);
            let mut replies = self.client.run(self.route, &[self.swap(&item, &rest), look])?;
            let seen = replies.pop();
            if replies.pop() != Some(Reply::Changed) {
                return Ok(seen);
            }
        }
        Ok(None)
    }

    /// Wakes the first one who is not one of `ours`, if there is room for it, and takes it and ours off. `queue` is what was read
    /// of it. One that is found dead is taken off, too, and the next one woken. One that is
    /// not certain to hear it is left where it is for some releases: it is to find that it is its turn, and the one
    /// behind it is asked to come a little later. After them a mutex is reserved for it.
    ///
    /// First the bell, then the queue: the next one is to be at work while we still write. But if an entry of ours is
    /// still there, whoever rang us has not got to write yet; then the next one might be done before either of us
    /// has, and would ring our entry instead of the one after it. So then the queue is written first.
    ///
    /// Even so an entry in front of ours may be that of somebody who had its turn before us, because whoever rang it is slow to write.
    /// Then the first one behind us is rung, too; but only after a short hold, since otherwise that writing is done long ago, and the
    /// one in front would be passed over.
    ///
    /// Where others may do the same at the same time, two may ring the same one. Whoever finds that out by the queue, for the other
    /// one was faster to write it, rings one more.
    pub(crate) fn hand_on(&self, queue: Item, room: Room, ours: &[WaitId], waker: &dyn Wake) -> HandedOn {
        let mut handed = HandedOn { ours: position(&queue.value, ours).is_some(), ..HandedOn::default() };
        if handed.ours
            && !room.shared
            && let Some(entry) = first_behind_us(&queue.value, ours)
            && waker.is_early()
            && waker.is_heard_by(&entry)
        {
            waker.wake(&entry, Ring::default());
        }
        let mut rung: Option<(WaitId, u32)> = None;
        // Those for whom something may be reserved: ourselves, and the one that we woke.
        let is_unheard = |entry: &Entry<'_>| !entry.proven && ours.contains(&entry.id);
        let mut unheard: Vec<WaitId> =
            entries::waiters(&queue.value).filter(is_unheard).map(|entry| entry.id).collect();
        // Ourselves, and those who are found dead.
        let mut gone = ours.to_vec();
        let (mut queue, mut kept) = (queue, false);
        for round in 1..=ROUNDS {
            let write_first = position(&queue.value, ours).is_some() && round < ROUNDS;
            let (mut next, mut left) = (None, None);
            while rung.is_none() && !kept && gone.len() < ours.len() + MOST_DEAD {
                let turn = whose_turn(&queue.value, &gone, room, waker);
                handed.others |= turn.others;
                left = turn.left.map(|left| left.id);
                if let Some(left) = turn.left.filter(|left| left.bell.is_some() && round == 1) {
                    waker.wake(&left, Ring::default());
                }
                let after = if left.is_some() { BEHIND_THE_DEAF } else { Duration::ZERO };
                next = turn.next.map(|next| (next, Ring { after, behind: turn.behind }));
                let Some((entry, told)) = next.filter(|_| !write_first) else { break };
                match waker.wake(&entry, told) {
                    Delivery::Sent => {
                        rung = Some((entry.id, entry.permits));
                        if !waker.is_heard_by(&entry) && !room.shared {
                            unheard.push(entry.id);
                            wake_a_watcher(&queue.value, &gone, entry.id, waker);
                        }
                    }
                    Delivery::Gone => gone.push(entry.id),
                    Delivery::Kept => (kept, next) = (true, None),
                }
            }
            next = next.filter(|_| !kept);
            // One for whom it is to be reserved stays until that is done: it would not hear that it has to join again.
            let reserve_later = write_first && next.is_some_and(|(next, _)| !waker.is_heard_by(&next));
            next = next.filter(|_| !reserve_later);
            let called = rung.map(|(id, _)| id).or(next.map(|(next, _)| next.id));
            // Whichever was woken ahead has its turn, though another one has come to stand in front of it.
            let off: Vec<WaitId> = gone.iter().copied().chain(called).chain(waker.woken()).collect();
            let rest = entries::after(&queue.value, &off, left, called);
            if rest == queue.value {
                break;
            }
            let written = self.client.one(self.route, self.swap(&queue, &rest));
            handed.stuck = written.is_err();
            let again = match (next, rung, &written) {
                (_, _, Ok(Reply::Changed)) => true,
                (None, None, Ok(_)) if reserve_later => {
                    // It was we who took ours off.
                    unheard.clear();
                    true
                }
                (Some((next, told)), None, _) => match waker.wake(&next, told) {
                    Delivery::Gone => {
                        gone.push(next.id);
                        true
                    }
                    delivery => {
                        rung = (delivery == Delivery::Sent).then_some((next.id, next.permits));
                        false
                    }
                },
                _ => false,
            };
            if !again {
                break;
            }
            queue = match self.client.get(self.route, self.key) {
                Ok(Some(item)) => item,
                _ => break,
            };
            let is_off = |id| position(&queue.value, &[id]).is_none();
            if room.shared {
                // Another one has woken it, and taken it off.
                rung = rung.filter(|&(id, _)| !is_off(id));
            } else if unheard.iter().any(|&id| is_off(id)) {
                // It had its turn without us, or we had ours: nobody claims what was reserved since.
                waker.withdraw(&unheard);
                rung = rung.filter(|&(id, _)| !unheard.contains(&id));
            }
        }
        handed.rung = rung.map(|(_, permits)| permits);
        handed
    }

    /// As [`Queue::hand_on`], for several permits: rings the first ones as long as there is room for them, until they are as many as
    /// became free: for the others, whoever freed them rings. But what was free before may have waited for somebody who wants
    /// several, and nobody else would ring for the rest of it.
    ///
    /// Nobody is rung twice: who was rung in vain, and stands in front again under another id, has seen for itself how it is.
    pub(crate) fn hand_on_all(
        &self,
        queue: Item,
        mut room: u32,
        mut freed: u32,
        ours: &[WaitId],
        waker: &dyn Wake,
    ) -> HandedOn {
        let known: Vec<WaitId> = entries::waiters(&queue.value).map(|entry| entry.id).collect();
        let mut queue = Some(queue);
        let mut first = None;
        while let Some(item) = queue.take() {
            let next = entries::in_order(&item.value).into_iter().find(|entry| !ours.contains(&entry.id));
            if next.is_some_and(|next| !known.contains(&next.id)) {
                break;
            }
            if entries::waiters(&item.value).any(|entry| entry.permits > 1) {
                freed = room;
            }
            let handed = self.hand_on(item, Room { permits: room, shared: true }, ours, waker);
            let rung = handed.rung.unwrap_or(0);
            first.get_or_insert(handed);
            (room, freed) = (room.saturating_sub(rung), freed.saturating_sub(rung));
            if rung > 0 && room > 0 && freed > 0 && !flaw::has(Flaw::ForgetTheRest) {
                queue = self.client.get(self.route, self.key).ok().flatten();
            }
        }
        first.unwrap_or_default()
    }

    fn swap<'b>(&'b self, item: &Item, value: &'b [u8]) -> Op<'b> {
        Op::Swap { key: self.key, version: item.version, value, ttl: life() }
    }
}

fn life() -> Ttl {
    Ttl::covering(LIFE)
}

/// Who is next in the queue.
struct Turn<'a> {
    /// Anybody but us.
    others: bool,
    /// The first one, if it may not hear that it is woken, and is left where it is for now.
    left: Option<Entry<'a>>,
    /// The one to be rung.
    next: Option<Entry<'a>>,
    /// Those who can be rung after it.
    behind: Behind,
}

fn whose_turn<'a>(queue: &'a [u8], ours: &[WaitId], room: Room, waker: &dyn Wake) -> Turn<'a> {
    let mut others = entries::in_order(queue).into_iter().filter(|entry| !ours.contains(&entry.id));
    let first = others.next();
    let fits = |entry: &Entry<'_>| entry.permits <= room.permits;
    if !first.as_ref().is_some_and(fits) {
        return Turn { others: first.is_some(), left: None, next: None, behind: Behind::default() };
    }
    let left = first.filter(|first| !waker.is_heard_by(first) && waker.passes(first));
    // The first release is its alone, since it may look only some time later.
    let next = match left {
        Some(left) if left.passed == 0 && room.shared => None,
        Some(_) => others.find(|entry| waker.is_heard_by(entry)),
        None => first,
    };
    let callable = others.map_while(|entry| Some((entry.bell.filter(|_| entry.proven)?, entry.id)));
    let behind = if room.shared { Behind::default() } else { callable.collect() };
    Turn { others: first.is_some(), left, next: next.filter(fits), behind }
}

/// It was reserved for a waiter that may be dead: has the next one see to that which is certain to hear it.
fn wake_a_watcher(queue: &[u8], gone: &[WaitId], reserved: WaitId, waker: &dyn Wake) {
    let waiters = entries::in_order(queue);
    let mut behind = waiters.iter().filter(|entry| entry.id != reserved && !gone.contains(&entry.id));
    if let Some(watcher) = behind.next().filter(|entry| waker.is_heard_by(entry)) {
        waker.wake(watcher, Ring { after: BEHIND_THE_DEAF, ..Ring::default() });
    }
}

/// The first one behind our last entry, if others stand in front of that.
fn first_behind_us<'a>(queue: &'a [u8], ours: &[WaitId]) -> Option<Entry<'a>> {
    let waiters = entries::in_order(queue);
    let is_ours = |entry: &Entry<'_>| ours.contains(&entry.id);
    let last = waiters.iter().rposition(is_ours)?;
    let others = waiters[..last].iter().any(|entry| !is_ours(entry));
    waiters.get(last + 1).copied().filter(|_| others)
}

/// How many stand before the first of `ids`.
fn position(queue: &[u8], ids: &[WaitId]) -> Option<usize> {
    entries::in_order(queue).iter().position(|entry| ids.contains(&entry.id))
}
