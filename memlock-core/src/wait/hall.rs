//! The waiters of one process: those who wait for the same thing through the same client stand in a
//! line, and only the first of them stands in the server's queue.
//!
//! | a waiter in the line | what is true | who may move it on |
//! | --- | --- | --- |
//! | idle | it sleeps on its bell, or has just been woken | itself, by going to work; whoever lets go of what it waits for, by serving it |
//! | at work | it speaks to the server, or is about to end its wait | itself |
//! | served | somebody is handing over to it, and speaks to the server for it; it may not go before that is settled | the one who serves it |
//! | given | it has it, and is to take it when it wakes | itself |
//!
//! A process that holds what it waited for only for moments, and comes back at once each time,
//! would spend most of its time on handing over. It gets a **turn** instead: it asks the next one
//! to come two milliseconds later, and until then takes and releases what it wants as if nobody
//! waited.
//!
//! Where several can have what they wait for at once, all that is left of the line is a list of who
//! waits in this process: each waiter stands in the server's queue for itself, and so each has its
//! own priority there.
//!
//! When the first one goes, the next one is woken, and takes over its place in the server's queue
//! if it still has one. The room also remembers what this process knows of the queue: whether
//! others were waiting, and its pace.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::bell::Bell;
use super::entries::WaitId;
use super::plan::{Known, Place};
use super::queue::HandedOn;
use crate::clock::Moment;
use crate::fork::{self, ForkLocal};
use crate::name::Key;
use crate::sync::{AtomicBool, Mutex, MutexGuard};

/// Beyond so many rooms those in which nobody waits are forgotten.
const MOST_ROOMS: usize = 1024;
/// So many entries that could not be taken off the server's queue are remembered.
const MOST_LEFT_BEHIND: usize = 8;
/// What counts as "at once", and as holding something only for a moment.
pub(crate) const MOMENT: Duration = Duration::from_micros(200);
/// For how long the number of waiters at the last release is good enough, and from which number on:
/// a waiter near its turn has to know its place.
pub(crate) const RECENT: Duration = Duration::from_millis(2);
const ENOUGH: usize = 5;
/// How long one that was rung gets to come, before we take for ourselves what we just gave away.
const RUNG: Duration = Duration::from_millis(2);
/// How long a turn lasts.
const TURN: Duration = Duration::from_millis(2);

/// The lines of one client. `A` is what a waiter asks for, `G` what it is given.
pub(crate) struct Hall<A, G> {
    /// Whether each waiter stands in the server's queue for itself: several of them can be served
    /// at once.
    side_by_side: bool,
    /// Also a child that a callback made in the middle of a call comes here: it finds its own.
    lines: ForkLocal<Lines<A, G>>,
}

struct Lines<A, G> {
    /// Whether there is any room: all that a caller looks at as long as nobody competes.
    occupied: AtomicBool,
    rooms: Mutex<Rooms<A, G>>,
}

struct Rooms<A, G> {
    last_number: u64,
    by_key: HashMap<Key, Room<A, G>>,
}

struct Room<A, G> {
    line: VecDeque<Seat<A, G>>,
    /// Under which ids we may still stand in the server's queue, though nobody waits under them:
    /// whoever is rung by one of them, takes it for its own.
    left_behind: Vec<WaitId>,
    stand: Option<Stand>,
    known: Known,
    habit: Habit,
}

/// How this process uses what it waits for.
struct Habit {
    /// When it let go the last time, after others had been waiting.
    released: Moment,
    /// The number of waiters then.
    waiting: usize,
    /// It had held it for a moment only.
    brief: bool,
    /// It comes back at once each time.
    brisk: bool,
    /// Until then it goes on as if nobody waited.
    turn_ends: Moment,
}

/// A place in the server's queue, with the bell that belongs to it.
pub(crate) struct Stand {
    pub(crate) place: Place,
    pub(crate) ids: Vec<WaitId>,
    pub(crate) bell: Arc<dyn Bell>,
}

struct Seat<A, G> {
    number: u64,
    ask: A,
    bell: Arc<dyn Bell>,
    /// Under which ids it stands in the server's queue.
    ids: Vec<WaitId>,
    /// It was rung, and is to come so much later.
    rung: Option<Duration>,
    state: State<G>,
}

enum State<G> {
    Idle,
    AtWork,
    Served,
    Given(G),
}

/// A waiter that is being served. Unless it is given something, it is to look for itself in the
/// end, and asks with what stands here then.
pub(crate) struct Serving<'a, A: Copy, G> {
    hall: &'a Hall<A, G>,
    key: &'a Key,
    number: u64,
    pub(crate) ask: A,
}

impl<A: Copy, G> Serving<'_, A, G> {
    /// Gives it what it waits for.
    pub(crate) fn give(self, got: G) {
        let mut got = Some(got);
        self.hall.with_seat(self.key, self.number, |seat| {
            if let Some(got) = got.take() {
                seat.state = State::Given(got);
                seat.bell.nudge();
            }
        });
        // If the waiter is gone, it is dropped here, where the rooms are not locked: that may speak
        // to the server.
        drop(got);
    }
}

impl<A: Copy, G> Drop for Serving<'_, A, G> {
    fn drop(&mut self) {
        // In a child that a callback made, the line is its parent's.
        if fork::is_astray() {
            return;
        }
        self.hall.with_seat(self.key, self.number, |seat| {
            if matches!(seat.state, State::Served) {
                (seat.state, seat.ask, seat.rung) = (State::Idle, self.ask, Some(Duration::ZERO));
                seat.bell.nudge();
            }
        });
    }
}

/// What a waiter finds when it wakes up.
pub(crate) enum Rise<G> {
    /// It is being served: sleep on.
    Served,
    /// It has it.
    Given(G),
    /// Nothing but perhaps a ring.
    Up {
        /// Another thread of this process rang, for it to come so much later.
        rung: Option<Duration>,
    },
}

impl<A, G> Default for Hall<A, G> {
    fn default() -> Self {
        Hall { side_by_side: false, lines: ForkLocal::new() }
    }
}

impl<A, G> Default for Lines<A, G> {
    fn default() -> Self {
        let rooms = Rooms { last_number: 0, by_key: HashMap::new() };
        Lines { occupied: AtomicBool::new(false), rooms: Mutex::new(rooms) }
    }
}

impl<A: Copy, G> Hall<A, G> {
    /// One in which each waiter stands in the server's queue for itself.
    pub(crate) fn side_by_side() -> Hall<A, G> {
        Hall { side_by_side: true, ..Hall::default() }
    }

    /// What is known of a queue for somebody who comes now; `None` when it may try at once. As long
    /// as nobody competes, this costs one atomic read.
    pub(crate) fn come(&self, key: &Key, now: Moment) -> Option<Known> {
        if !self.is_occupied() {
            return None;
        }
        let mut rooms = self.rooms();
        let room = rooms.by_key.get_mut(key)?;
        let habit = &mut room.habit;
        let in_turn = now < habit.turn_ends;
        let at_once = now.since(habit.turn_ends.max(habit.released)) < MOMENT;
        if !in_turn {
            habit.brisk = habit.brief && at_once;
        }
        let courteous = !room.line.is_empty() || room.known.courteous && !in_turn;
        let invited = if at_once { RUNG } else { Duration::ZERO };
        let is_recent = now.since(habit.released) < RECENT;
        let waiting = Some(habit.waiting).filter(|&waiting| is_recent && waiting >= ENOUGH);
        courteous.then_some(Known { courteous, invited, waiting, ..room.known })
    }

    /// For how long we go on, now that we let go of what we held for so long while others may be
    /// waiting.
    pub(crate) fn turn(&self, key: &Key, now: Moment, held: Duration) -> Duration {
        let mut rooms = self.rooms();
        let Some(room) = rooms.by_key.get_mut(key) else { return Duration::ZERO };
        let habit = &mut room.habit;
        habit.brief = held < MOMENT;
        if !habit.brisk || !habit.brief || !room.line.is_empty() {
            return Duration::ZERO;
        }
        habit.turn_ends = now + TURN;
        TURN
    }

    /// Remembers who was waiting when we let go, which is done now.
    pub(crate) fn let_go(&self, key: &Key, handed: HandedOn, now: Moment) {
        let mut rooms = self.rooms();
        if handed.others {
            let room = rooms.by_key.entry(key.clone()).or_default();
            room.known.courteous = true;
            (room.habit.released, room.habit.waiting) = (now, handed.waiting);
        } else if let Some(room) = rooms.by_key.get_mut(key) {
            room.known.courteous = false;
        }
        self.settle(rooms, key);
    }

    /// Our entries by these ids could not be taken off the server's queue.
    pub(crate) fn leave_behind(&self, key: &Key, ids: &[WaitId]) {
        // Those of a child that a callback made in the middle of a call are its parent's.
        if ids.is_empty() || fork::is_astray() {
            return;
        }
        let mut rooms = self.rooms();
        let left = &mut rooms.by_key.entry(key.clone()).or_default().left_behind;
        left.extend(ids);
        left.drain(..left.len().saturating_sub(MOST_LEFT_BEHIND));
        self.settle(rooms, key);
    }

    /// The ids of entries that were left behind: from now on they are the caller's.
    pub(crate) fn take_left_behind(&self, key: &Key) -> Vec<WaitId> {
        let mut rooms = self.rooms();
        rooms
            .by_key
            .get_mut(key)
            .map(|room| std::mem::take(&mut room.left_behind))
            .unwrap_or_default()
    }

    /// Stands at the end of the line. Gives a number by which the waiter is known from now on.
    pub(crate) fn enter(&self, key: &Key, ask: A, bell: &Arc<dyn Bell>) -> u64 {
        let mut rooms = self.rooms();
        rooms.last_number += 1;
        let number = rooms.last_number;
        let room = rooms.by_key.entry(key.clone()).or_default();
        let bell = Arc::clone(bell);
        room.line.push_back(Seat {
            number,
            ask,
            bell,
            ids: Vec::new(),
            rung: None,
            state: State::Idle,
        });
        self.settle(rooms, key);
        number
    }

    /// Whether this waiter is the first, and the place in the server's queue that it finds there.
    pub(crate) fn first(&self, key: &Key, number: u64) -> (bool, Option<Stand>) {
        if self.side_by_side {
            return (true, None);
        }
        let mut rooms = self.rooms();
        match rooms.by_key.get_mut(key) {
            Some(room) if room.line.front().is_none_or(|first| first.number == number) => {
                let stand = room.stand.take();
                if let (Some(stand), Some(first)) = (&stand, room.line.front_mut()) {
                    (first.bell, first.ids) = (Arc::clone(&stand.bell), stand.ids.clone());
                }
                (true, stand)
            }
            room => (room.is_none(), None),
        }
    }

    /// About to speak to the server, or to end the wait. False when it is being served: then it is
    /// to sleep on.
    pub(crate) fn go_to_work(&self, key: &Key, number: u64) -> bool {
        let go = self.with_seat(key, number, |seat| match seat.state {
            State::Idle | State::AtWork => {
                seat.state = State::AtWork;
                true
            }
            State::Served | State::Given(_) => false,
        });
        go.unwrap_or(true)
    }

    /// About to sleep, standing in the server's queue under these ids. False when there is a reason
    /// not to.
    pub(crate) fn doze(&self, key: &Key, number: u64, ids: &[WaitId]) -> bool {
        let doze = self.with_seat(key, number, |seat| {
            if matches!(seat.state, State::AtWork) {
                seat.state = State::Idle;
            }
            if seat.ids != ids {
                seat.ids = ids.to_vec();
            }
            matches!(seat.state, State::Idle) && seat.rung.is_none()
        });
        doze.unwrap_or(true)
    }

    /// This waiter has taken its lines off the server's queue: it was not woken by those any more.
    pub(crate) fn has_left(&self, key: &Key, number: u64) {
        self.with_seat(key, number, |seat| {
            seat.ids.clear();
            seat.rung = None;
        });
    }

    /// Awake again.
    pub(crate) fn rise(&self, key: &Key, number: u64) -> Rise<G> {
        let risen = self.with_seat(key, number, |seat| {
            match std::mem::replace(&mut seat.state, State::Idle) {
                State::Given(got) => Rise::Given(got),
                State::Served => {
                    seat.state = State::Served;
                    Rise::Served
                }
                State::Idle | State::AtWork => Rise::Up { rung: seat.rung.take() },
            }
        });
        risen.unwrap_or(Rise::Up { rung: None })
    }

    /// This waiter was rung at its place in the server's queue, and has no use for that any more:
    /// the next one in line is to heed it, which takes over the place.
    pub(crate) fn leave_ring(&self, key: &Key, number: u64, after: Duration) {
        self.with_seat(key, number, |seat| seat.rung = Some(after));
    }

    /// Goes, and leaves its place in the server's queue to the next in line, which is woken. Gives
    /// the place back when nobody is there to take it.
    pub(crate) fn leave(
        &self,
        key: &Key,
        number: u64,
        stand: Option<Stand>,
        pace: Option<Duration>,
    ) -> Option<Stand> {
        let mut rooms = self.rooms();
        let Some(room) = rooms.by_key.get_mut(key) else { return stand };
        let was_first =
            !self.side_by_side && room.line.front().is_some_and(|first| first.number == number);
        let place = room.line.iter().position(|seat| seat.number == number);
        // What it holds may speak to the server when it is dropped: not before the rooms are
        // unlocked.
        let gone = place.and_then(|place| room.line.remove(place));
        let rung = gone.as_ref().and_then(|gone| gone.rung);
        room.known.pace = pace.or(room.known.pace);
        // One that nobody has taken over yet goes on to the one after.
        let stand = stand.or_else(|| if was_first { room.stand.take() } else { None });
        let left = match room.line.front_mut() {
            Some(next) if was_first => {
                room.stand = stand;
                next.rung = next.rung.or(rung);
                next.bell.nudge();
                None
            }
            _ => stand,
        };
        self.settle(rooms, key);
        left
    }

    /// The first in line, if it is idle: it will not go as long as this lasts.
    pub(crate) fn serve<'a>(&'a self, key: &'a Key) -> Option<Serving<'a, A, G>> {
        if !self.is_occupied() {
            return None;
        }
        let mut rooms = self.rooms();
        let first = rooms.by_key.get_mut(key)?.line.front_mut()?;
        if !matches!(first.state, State::Idle) {
            return None;
        }
        first.state = State::Served;
        Some(Serving { hall: self, key, number: first.number, ask: first.ask })
    }

    /// Whether a waiter by this id is one of this process.
    pub(crate) fn has(&self, key: &Key, id: WaitId) -> bool {
        let rooms = self.rooms();
        let Some(room) = rooms.by_key.get(key) else { return false };
        let orphaned = room.stand.as_ref().is_some_and(|stand| stand.ids.contains(&id));
        orphaned || room.line.iter().any(|seat| seat.ids.contains(&id))
    }

    /// Rings a waiter of this process, for it to come so much later. False when there is none by
    /// this id.
    pub(crate) fn ring(&self, key: &Key, id: WaitId, after: Duration) -> bool {
        let mut rooms = self.rooms();
        let Some(Room { line, stand, .. }) = rooms.by_key.get_mut(key) else { return false };
        let orphaned = stand.as_ref().is_some_and(|stand| stand.ids.contains(&id));
        let seat = line.iter_mut().find(|seat| orphaned || seat.ids.contains(&id));
        let Some(seat) = seat else { return false };
        seat.rung = Some(seat.rung.map_or(after, |other| other.min(after)));
        seat.bell.nudge();
        true
    }

    fn with_seat<T>(
        &self,
        key: &Key,
        number: u64,
        body: impl FnOnce(&mut Seat<A, G>) -> T,
    ) -> Option<T> {
        let mut rooms = self.rooms();
        let room = rooms.by_key.get_mut(key)?;
        room.line.iter_mut().find(|seat| seat.number == number).map(body)
    }

    /// Forgets a room that is worth nothing, and when there are too many, all in which nobody
    /// waits.
    fn settle(&self, mut rooms: MutexGuard<'_, Rooms<A, G>>, key: &Key) {
        let worthless = |room: &Room<A, G>| {
            room.line.is_empty() && !room.known.courteous && room.left_behind.is_empty()
        };
        if rooms.by_key.get(key).is_some_and(worthless) {
            rooms.by_key.remove(key);
        }
        if rooms.by_key.len() > MOST_ROOMS {
            rooms.by_key.retain(|_, room| !room.line.is_empty());
        }
        self.lines.get().occupied.store(!rooms.by_key.is_empty(), Ordering::Release);
    }

    fn is_occupied(&self) -> bool {
        self.lines.existing().is_some_and(|lines| lines.occupied.load(Ordering::Acquire))
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms<A, G>> {
        self.lines.get().rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A, G> Default for Room<A, G> {
    fn default() -> Self {
        let never = Moment::from_boot(Duration::ZERO);
        let habit =
            Habit { released: never, waiting: 0, brief: false, brisk: false, turn_ends: never };
        Room {
            line: VecDeque::new(),
            left_behind: Vec::new(),
            stand: None,
            known: Known::default(),
            habit,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::name::Keyspace;
    use crate::wait::bell::Ring;

    /// A bell that never rings.
    struct Mute;

    impl Bell for Mute {
        fn address(&self, _test: WaitId) -> Option<SocketAddr> {
            None
        }
        fn sleep(&self, _duration: Duration) {}
        fn heard(&self, _live: &[WaitId]) -> Option<Ring> {
            None
        }
        fn nudge(&self) {}
    }

    /// Otherwise the waiter would take the line for taken off under which it has joined since.
    #[test]
    fn a_waiter_that_has_left_the_queue_is_not_woken_by_its_earlier_line() {
        let key = Keyspace::default().semaphore(b"x");
        let hall = Hall::<(), ()>::side_by_side();
        let bell: Arc<dyn Bell> = Arc::new(Mute);
        let number = hall.enter(&key, (), &bell);
        assert!(hall.doze(&key, number, &[WaitId(1)]));
        assert!(hall.ring(&key, WaitId(1), Duration::ZERO));
        hall.has_left(&key, number);
        assert!(!hall.ring(&key, WaitId(1), Duration::ZERO), "nobody waits under it");
        assert!(hall.doze(&key, number, &[WaitId(2)]));
        assert!(matches!(hall.rise(&key, number), Rise::Up { rung: None }));
    }

    #[test]
    fn whoever_takes_over_a_place_heeds_what_was_rung_there() {
        let key = Keyspace::default().lock(b"x");
        let hall = Hall::<(), ()>::default();
        let bell: Arc<dyn Bell> = Arc::new(Mute);
        let (first, next) = (hall.enter(&key, (), &bell), hall.enter(&key, (), &bell));
        assert!(hall.doze(&key, first, &[WaitId(1)]));
        hall.serve(&key).unwrap().give(());
        assert!(matches!(hall.rise(&key, first), Rise::Given(())));
        hall.leave_ring(&key, first, Duration::ZERO);
        assert!(hall.leave(&key, first, None, None).is_none());
        assert!(matches!(hall.rise(&key, next), Rise::Up { rung: Some(Duration::ZERO) }));
    }

    #[test]
    fn how_many_were_waiting_is_known_for_a_moment_if_they_were_many() {
        let key = Keyspace::default().semaphore(b"x");
        let at = |micros: u64| Moment::from_boot(Duration::from_micros(1_000_000 + micros));
        let hall = Hall::<(), ()>::side_by_side();
        let waiting = |waiting, later| {
            hall.let_go(&key, HandedOn { others: true, waiting, ..HandedOn::default() }, at(0));
            hall.come(&key, at(later)).and_then(|known| known.waiting)
        };
        assert_eq!(waiting(ENOUGH, 1999), Some(ENOUGH));
        assert_eq!(waiting(ENOUGH, 2001), None, "too long ago");
        assert_eq!(waiting(ENOUGH - 1, 1), None, "a waiter near its turn has to know its place");
    }
}
