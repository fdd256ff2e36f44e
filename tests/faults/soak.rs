//! All faults at random, several at once, over the same clients for as long as is wanted.

use std::path::Path;
use std::thread;
use std::time::Duration;

use memlock_tests::cable::Cable;
use memlock_tests::check::{Verdict, check};
use memlock_tests::history::Call;

use crate::cuts::{Cutter, Side};
use crate::injection::{Injection, Place, Undo};
use crate::processes::{Kind, Programs, USUAL};
use crate::report::Tally;
use crate::world::{BOUND, SHORT, Setting, World};
use crate::{Failure, growth, now, report};

/// How often the clients are looked at, and the time.
const STEP: Duration = Duration::from_millis(10);
/// How often the histories are read and checked.
const CHECK: Duration = Duration::from_secs(15);
/// For how long what was read is kept, to be checked with what comes after it: longer than any hold
/// and any stop.
const KEPT: Duration = Duration::from_secs(30);
/// Within that time all clients have met what one of them set up or inserted.
const SETTLED: Duration = Duration::from_secs(15);
/// Without faults: at the beginning, so that a server is older than the next one; and at the end,
/// so that the queue entries of the dead are removed.
const CALM: Duration = Duration::from_secs(4);
/// The pause between the beginnings of two faults, in milliseconds.
const PAUSE: (u64, u64) = (100, 900);

/// What runs beside the long-living clients, and is killed.
const MORTAL: [Kind; 4] = [Kind::C, Kind::Python, Kind::Rust, Kind::C];

/// Runs it; true if all was as it should be.
pub(crate) fn run(programs: &Programs, folder: &Path, time: Duration) -> Result<bool, Failure> {
    let cable = match Cable::lay() {
        Ok(cable) => Some(cable),
        Err(why) => {
            println!(
                "NOT PART OF IT: {}: no network namespaces here: {why}",
                Injection::CablePulled.about().0
            );
            None
        }
    };
    let mut world = World::new(programs, SHORT, Setting { cable, ..Setting::default() }, folder)?;
    world.gather(&USUAL)?;
    world.crew.spare_all();
    world.start(&MORTAL)?;
    let mut soak = Soak::new(world);
    let first = (time / 5).max(CALM);
    soak.pass(CALM, false)?;
    soak.pass(first.saturating_sub(CALM), true)?;
    let before = growth::look(&soak.world.crew.pids())?;
    soak.pass(time.saturating_sub(first), true)?;
    soak.end_all(Duration::MAX)?;
    soak.pass(CALM, false)?;
    let after = growth::look(&soak.world.crew.pids())?;
    soak.world.crew.dismiss()?;
    soak.check(Duration::MAX)?;
    soak.line();
    let misdeeds = std::mem::take(&mut soak.world.crew.misdeeds);
    soak.verdict.violations.extend(misdeeds);
    let left = soak.world.queued()?;
    if left > 0 {
        soak.verdict
            .violations
            .push(format!("{left} entries of finished processes are left in the queues"));
    }
    let (most, too_much) = growth::compare(&before, &after);
    println!(
        "growth of the long-living clients: at most {} KiB and {} descriptors; entries left in the queues: {left}",
        most.bytes >> 10,
        most.descriptors
    );
    soak.verdict.violations.extend(too_much);
    soak.verdict.violations.extend(soak.world.stuck()?);
    println!(
        "{}\n{}\n{}",
        report::head(),
        report::row("soak", &soak.tally, &soak.verdict),
        report::LEGEND
    );
    let Verdict { violations, hung, .. } = &soak.verdict;
    print!("{}{}", report::findings(violations), report::findings(hung));
    let fine = violations.is_empty() && hung.is_empty();
    if fine {
        println!("All as it should be.");
        soak.world.clean_up()?;
    } else {
        println!("NOT as it should be. The histories are in {}", folder.display());
    }
    Ok(fine)
}

/// A fault that goes on, or that was over just now.
struct Active {
    fault: Injection,
    /// When it is to end, and when the next of its kind may begin.
    ends: Duration,
    free: Duration,
    undo: Option<Undo>,
}

impl Active {
    /// Whether both may not be at once.
    fn excludes(&self, other: &Injection) -> bool {
        let ((own, here, _), (name, there, _)) = (self.fault.about(), other.about());
        own == name || (here == there && here != Place::Elsewhere)
    }
}

struct Soak {
    world: World,
    choice: Vec<Injection>,
    active: Vec<Active>,
    began: Duration,
    next: Duration,
    next_check: Duration,
    next_line: Duration,
    /// What was read and is still to be checked with what comes.
    calls: Vec<Call>,
    tally: Tally,
    verdict: Verdict,
    faults: usize,
}

impl Soak {
    fn new(world: World) -> Soak {
        let mut choice = vec![
            Injection::Cuts(Cutter::new(Side::Request)),
            Injection::Cuts(Cutter::new(Side::Reply)),
            Injection::Delays,
            Injection::BlackHole,
            Injection::ByteByByte,
            Injection::RepeatedReplies,
            Injection::ClientsKilled,
            Injection::ClientsStopped,
            Injection::ServerRestarted,
            Injection::ServerFlushed,
            Injection::ServerStopped,
            Injection::ServerFull,
            Injection::FewConnections,
            Injection::FewDescriptors,
        ];
        choice.extend(world.setting.cable.as_ref().map(|_| Injection::CablePulled));
        let began = now();
        Soak {
            world,
            choice,
            active: Vec::new(),
            began,
            next: began,
            next_check: began + CHECK,
            next_line: began + Duration::from_secs(60),
            calls: Vec::new(),
            tally: Tally::default(),
            verdict: Verdict::default(),
            faults: 0,
        }
    }

    /// Lets some time pass, with new faults or without.
    fn pass(&mut self, time: Duration, troubled: bool) -> Result<(), Failure> {
        let end = now() + time;
        while now() < end {
            thread::sleep(STEP);
            self.world.crew.see_who_ended()?;
            self.end_all(now())?;
            if troubled && now() >= self.next {
                self.begin_one()?;
            }
            if now() >= self.next_check {
                self.check(now())?;
                self.next_check = now() + CHECK;
            }
            if now() >= self.next_line {
                self.line();
                self.next_line += Duration::from_secs(60);
            }
        }
        Ok(())
    }

    fn begin_one(&mut self) -> Result<(), Failure> {
        let world = &mut self.world;
        self.next = now() + world.chance.millis(PAUSE.0, PAUSE.1);
        let excluded = |fault: &&Injection| self.active.iter().any(|active| active.excludes(fault));
        let choice: Vec<&Injection> = self.choice.iter().filter(|fault| !excluded(fault)).collect();
        let place = world.chance.below(choice.len().max(1) as u64) as usize;
        let Some(fault) = choice.get(place).map(|fault| Injection::clone(fault)) else {
            return Ok(());
        };
        let (_, _, [(least, most), (gone, longest)]) = fault.about();
        let undo = Some(fault.begin(world)?);
        let ends = now() + world.chance.millis(least, most);
        let free = ends + world.chance.millis(gone, longest);
        self.active.push(Active { fault, ends, free, undo });
        self.faults += 1;
        Ok(())
    }

    /// Ends what is to end by this moment.
    fn end_all(&mut self, by: Duration) -> Result<(), Failure> {
        for active in self.active.iter_mut().filter(|active| active.ends <= by) {
            if let Some(undo) = active.undo.take() {
                undo(&mut self.world)?;
            }
        }
        self.active.retain(|active| active.undo.is_some() || active.free > by);
        Ok(())
    }

    /// Reads what was written until this moment, and checks it together with what was written
    /// shortly before.
    fn check(&mut self, until: Duration) -> Result<(), Failure> {
        let new = self.world.read(until)?;
        self.tally.add(&new);
        self.calls.extend(new);
        let now = until.min(now());
        let since = now.saturating_sub(KEPT);
        let mut facts = self.world.facts(now);
        // Calls that end after that moment may have begun before it.
        let margin = since.saturating_sub(KEPT);
        facts.losses.retain(|loss| loss.to >= margin);
        facts.stops.retain(|(_, stop)| stop.to >= margin);
        self.calls.retain(|call| call.ended() >= since);
        if since > self.began {
            facts.since = since + SETTLED;
        }
        let dead =
            |call: &Call| facts.deaths.get(&call.who.process).is_some_and(|death| *death < since);
        let open = self.world.open().filter(|call| !dead(call));
        let calls: Vec<Call> = self.calls.iter().cloned().chain(open).collect();
        let found = check(&calls, &facts);
        self.verdict.latest = self.verdict.latest.max(found.latest);
        for (all, new) in [
            (&mut self.verdict.violations, found.violations),
            (&mut self.verdict.hung, found.hung),
            (&mut self.verdict.losses, found.losses),
        ] {
            let fresh: Vec<String> = new.into_iter().filter(|text| !all.contains(text)).collect();
            all.extend(fresh);
        }
        Ok(())
    }

    fn line(&self) {
        let minutes = now().saturating_sub(self.began).as_secs_f64() / 60.0;
        let Verdict { losses, violations, hung, .. } = &self.verdict;
        println!(
            "{minutes:5.1} min: {} faults, {}, {} lost with the server, {} violations, {} hung",
            self.faults,
            self.tally.summary(),
            losses.len(),
            violations.len(),
            hung.len()
        );
    }
}

// A stop may last for as long as its fault, and a call that is longer by its bound: both must be
// kept together.
const _: () = assert!(KEPT.as_secs() > 3 * BOUND.as_secs() + 10);
// What one check passes by, since its beginning is out of sight, the one before has seen.
const _: () = assert!(CHECK.as_secs() + SETTLED.as_secs() <= KEPT.as_secs());
