//! Semaphores over a store that loses packets, gives false replies, and has items that others
//! wrote: calls by two clients with two handles each. For the input see `scene`.
//!
//! Where nothing worse happens than that packets are lost, the item is inspected after every call:
//! each holder that relies on permits has a line there that lasts longer, there are as many permits
//! as were asked for, each answer is true, and all permits come back.

use std::time::Duration;

use super::input::Input;
use super::scene::Scene;
use memlock_core::clock::{Clock, Moment};
use memlock_core::fuzzing::{SemaphoreHolder, SemaphoreRecord};
use memlock_core::name::{Key, Keyspace};
use memlock_core::{
    ErrorKind, Extension, Permit, Release, Request, Semaphore, SetUp, Token, Wait, Waited,
};

/// How many permits the handles are opened with, where they are.
const OPENED_WITH: [Option<u32>; 4] = [Some(3), None, Some(3), Some(5)];
const MOST_RESIZED: u32 = 6;
const MOST_LEASE: u64 = 100;
/// How much longer than a lease its permits may be gone: two seconds by which the server's clock
/// may be behind, one for its whole seconds, and one for those of the lease.
const COME_BACK: Duration = Duration::from_secs(4);

pub fn run(data: &[u8]) {
    let mut scene = Scene::new(data, 32);
    let clients = [scene.client(), scene.client()];
    let handles: Vec<Semaphore> = (0..4)
        .map(|number| {
            let (client, lease) = (&clients[number / 2], Duration::from_secs(30));
            match OPENED_WITH[number] {
                Some(permits) => client.semaphore("x", permits, lease),
                None => client.open_semaphore("x", lease),
            }
            .expect("a plain name")
        })
        .collect();
    let mut held = Vec::new();
    let mut last = Moment::from_boot(Duration::ZERO);
    let key = Keyspace::default().semaphore(b"x");
    let (time, honest) = (std::sync::Arc::clone(&scene.time), scene.honest);
    loop {
        let before = Snapshot::at(&scene, &key);
        let Some((what, program)) = scene.next_call() else { break };
        let call = Call::read(what & 15, program);
        if let Call::Pass(length) = call {
            time.pass(length);
        }
        let outcome =
            call.make(&handles[usize::from(what >> 6)], &mut held, usize::from(what >> 4 & 3));
        last = last.max(time.now() + Duration::from_secs(MOST_LEASE) + COME_BACK);
        let limit = Duration::from_secs(MOST_LEASE);
        assert!(held.iter().all(|permit: &Permit| permit.remaining() <= limit));
        if honest {
            let after = Snapshot::at(&scene, &key);
            check(&call, &outcome, &before, &after);
            verified(&mut held, &call, &after);
        }
    }
    // A client that dies gives nothing back.
    held.into_iter().for_each(Permit::abandon);
    time.pass(last.since(time.now()));
    if let (true, Some(Snapshot { record, now })) = (honest, Snapshot::at(&scene, &key)) {
        assert_eq!(record.available(now), record.permits(), "all permits come back");
    }
}

/// What the item says, and what the store's clock shows.
struct Snapshot {
    record: SemaphoreRecord,
    now: u64,
}

impl Snapshot {
    fn at(scene: &Scene<'_>, key: &Key) -> Option<Snapshot> {
        let item = scene.item(key)?;
        let record = SemaphoreRecord::parse(&item.value)?;
        let remaining = item.remaining?.as_secs_f64().ceil() as u64;
        let now = record.life().0.saturating_sub(remaining);
        Some(Snapshot { record, now })
    }

    fn line_of(&self, token: Token) -> Option<SemaphoreHolder> {
        self.record.holders().into_iter().find(|holder| holder.token == token)
    }
}

/// One call.
enum Call {
    Acquire { request: Request, limit: Duration, lease: Duration },
    Extend(Duration),
    Release,
    Drop,
    Abandon,
    SetUp(Duration),
    TearDown,
    Resize(u32),
    Status,
    Pass(Duration),
}

/// Its answer.
enum Outcome {
    Nothing,
    Granted(Token, u32),
    Refused,
    NotThere,
    Extended(Token),
    /// And for how long it was ours yet.
    Lost(Token, Duration),
    Released(Token),
    SetUp(SetUp),
    TornDown(bool),
    Resized(Option<u32>),
    /// How many permits there are, how many are available, and how many hold the others.
    Status(Option<(u32, u32, usize)>),
}

impl Call {
    fn read(what: u8, program: &mut Input<'_>) -> Call {
        match what {
            0..=5 => {
                let lease = Duration::from_secs(1 + program.number() % MOST_LEASE);
                let most = if what < 3 { 0 } else { program.byte() };
                let bits = program.byte();
                let (permits, priority) = (u32::from(bits % 5), i64::from(bits >> 4) - 8);
                let request = Request { permits, priority, ages: bits & 8 == 0 };
                Call::Acquire { request, limit: Duration::from_millis(100) * most.into(), lease }
            }
            6 | 7 => Call::Release,
            8 => Call::Extend(Duration::from_secs(1 + program.number() % MOST_LEASE)),
            9 => Call::Drop,
            10 => Call::Abandon,
            11 => Call::SetUp(Duration::from_secs(1 + program.number() % 1000)),
            12 => match program.byte() {
                0..64 => Call::TearDown,
                byte => Call::Resize(u32::from(byte) % (MOST_RESIZED + 1)),
            },
            13 => Call::Status,
            14 => Call::Pass(Duration::from_millis(program.number() % 4000)),
            _ => Call::Pass(Duration::from_secs(program.number() % 400)),
        }
    }

    /// `which` of those that are held, where it is about them.
    fn make(&self, semaphore: &Semaphore, held: &mut Vec<Permit>, which: usize) -> Outcome {
        let place = which % held.len().max(1);
        let chosen = held.get_mut(place);
        match (self, chosen) {
            (Call::Acquire { request, limit, lease }, _) => {
                let semaphore = semaphore.with_lease(*lease).expect("a good lease");
                let wait = if limit.is_zero() { Wait::NEVER } else { Wait::at_most(*limit) };
                match semaphore.acquire_with(*request, &wait) {
                    Ok(Waited::Done(permit)) => {
                        assert!(
                            permit.remaining() <= *lease && permit.permits() == request.permits
                        );
                        let granted = Outcome::Granted(permit.token(), permit.permits());
                        held.push(permit);
                        granted
                    }
                    Ok(Waited::Busy) => Outcome::Refused,
                    Err(error) if error.kind() == ErrorKind::NotFound => Outcome::NotThere,
                    _ => Outcome::Nothing,
                }
            }
            (Call::Extend(lease), Some(permit)) => {
                let left = permit.remaining();
                match permit.extend(*lease) {
                    Ok(Extension::Extended) => Outcome::Extended(permit.token()),
                    Ok(_) => Outcome::Lost(held.remove(place).token(), left),
                    Err(_) => Outcome::Nothing,
                }
            }
            (Call::Release, Some(permit)) => {
                let left = permit.remaining();
                let Ok(released) = permit.release() else { return Outcome::Nothing };
                let again = permit.release();
                assert!(matches!(again, Ok(Release::NotHeld | Release::Lost)), "{again:?}");
                assert!(permit.remaining().is_zero());
                let token = held.remove(place).token();
                if released == Release::Released {
                    Outcome::Released(token)
                } else {
                    Outcome::Lost(token, left)
                }
            }
            (Call::Drop, Some(_)) => {
                drop(held.remove(place));
                Outcome::Nothing
            }
            (Call::Abandon, Some(_)) => {
                held.remove(place).abandon();
                Outcome::Nothing
            }
            (Call::SetUp(life), _) => {
                semaphore.set_up(*life).map_or(Outcome::Nothing, Outcome::SetUp)
            }
            (Call::TearDown, _) => {
                semaphore.tear_down().map_or(Outcome::Nothing, Outcome::TornDown)
            }
            (Call::Resize(permits), _) => {
                semaphore.resize(*permits).map_or(Outcome::Nothing, Outcome::Resized)
            }
            (Call::Status, _) => semaphore.status().map_or(Outcome::Nothing, |status| {
                let counted = |status: memlock_core::semaphore::Status| {
                    (status.permits, status.available, status.holders.len())
                };
                Outcome::Status(status.map(counted))
            }),
            _ => Outcome::Nothing,
        }
    }
}

/// Checks that an answer is true.
fn check(call: &Call, outcome: &Outcome, before: &Option<Snapshot>, after: &Option<Snapshot>) {
    as_many_as_asked_for(call, outcome, before, after);
    let line = |token: Token| after.as_ref().and_then(|after| after.line_of(token));
    match *outcome {
        Outcome::Nothing => {}
        Outcome::Granted(token, permits) => {
            assert_eq!(line(token).map(|line| line.permits), Some(permits));
            let Some(Snapshot { record, now }) = after else { return };
            let live = record.holders().into_iter().filter(|holder| holder.until > *now);
            let out: u64 = live.map(|holder| u64::from(holder.permits)).sum();
            assert!(
                out <= u64::from(record.permits()),
                "no more are given than there are: {record:?}"
            );
        }
        Outcome::Refused => {
            let (Call::Acquire { request, .. }, Some(Snapshot { record, now })) = (call, before)
            else {
                panic!("refused, and there was none")
            };
            let short = record.available(*now) < request.permits;
            assert!(short || record.reservation().is_some(), "refused for no reason: {record:?}");
        }
        Outcome::NotThere => {
            assert!(before.is_none() && after.is_none(), "not found, and it was there")
        }
        Outcome::Extended(token) => assert!(line(token).is_some()),
        Outcome::Lost(token, left) => {
            assert!(line(token).is_none(), "lost, and it is there");
            let was = before.as_ref().and_then(|before| before.line_of(token));
            assert!(left.is_zero() || was.is_none(), "lost before its time");
        }
        Outcome::Released(token) => assert!(line(token).is_none(), "released, and it is there"),
        Outcome::SetUp(how) => {
            assert_eq!(how == SetUp::Created, before.is_none());
            assert!(after.is_some());
        }
        Outcome::TornDown(was) => {
            assert_eq!(was, before.is_some());
            assert!(after.is_none());
        }
        Outcome::Resized(None) => assert!(before.is_none() && after.is_none()),
        Outcome::Resized(was) => {
            assert_eq!(was, before.as_ref().map(|before| before.record.permits()));
        }
        Outcome::Status(status) => {
            let counted = |Snapshot { record, now }: &Snapshot| {
                let live = record.holders().iter().filter(|holder| holder.until > *now).count();
                (record.permits(), record.available(*now), live)
            };
            let (before, after) = (before.as_ref().map(counted), after.as_ref().map(counted));
            // A second may have passed within it.
            assert!(
                status == before || status == after,
                "{status:?}, and it was {before:?} and {after:?}"
            );
        }
    }
}

/// Only a resize changes the number of permits.
fn as_many_as_asked_for(
    call: &Call,
    outcome: &Outcome,
    before: &Option<Snapshot>,
    after: &Option<Snapshot>,
) {
    let Some(Snapshot { record: after, .. }) = after else { return };
    match before {
        Some(Snapshot { record: before, .. }) if before.token() == after.token() => {
            let asked = if let Call::Resize(permits) = *call { permits } else { before.permits() };
            let done = [
                asked,
                if matches!(outcome, Outcome::Resized(_)) { asked } else { before.permits() },
            ];
            assert!(done.contains(&after.permits()), "{before:?} has become {after:?}");
        }
        // It is as large as it was to be, or as it is remembered to have been.
        _ => assert!((1..=MOST_RESIZED).contains(&after.permits()), "{after:?}"),
    }
}

/// A holder that relies on permits has them, and the server stores them for longer than that.
fn verified(held: &mut Vec<Permit>, call: &Call, after: &Option<Snapshot>) {
    let line = |permit: &Permit| after.as_ref().and_then(|after| after.line_of(permit.token()));
    // Their holders do not know.
    if let Call::TearDown = call {
        for permit in held.extract_if(.., |permit| line(permit).is_none()) {
            permit.abandon();
        }
    }
    for permit in held.iter().filter(|permit| !permit.remaining().is_zero()) {
        let Some(line) = line(permit) else {
            panic!(
                "{permit:?} is verified in, and not there: {:?}",
                after.as_ref().map(|look| &look.record)
            )
        };
        assert!(
            permit.deadline() <= Moment::from_boot(Duration::from_secs(line.until)),
            "{permit:?} outlives {line:?}"
        );
        assert_eq!(permit.permits(), line.permits);
    }
}
