//! One round: one fault, again and again, for some seconds.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use memlock_tests::cable::Cable;
use memlock_tests::check::{Facts, Verdict, check};
use memlock_tests::disk::Disk;
use memlock_tests::history::Call;

use crate::cuts::{Cutter, Side};
use crate::injection::{Injection, Place};
use crate::processes::{Kind, Programs, USUAL};
use crate::report::Tally;
use crate::world::{LONG, SHORT, Setting, World};
use crate::{Failure, now};

/// How often a round looks at its clients, and at the time.
const STEP: Duration = Duration::from_millis(10);
/// How long a server has to run before another one takes its place.
const FIRST_SECOND: Duration = Duration::from_millis(1200);
/// How long a wrong client needs to be found: until its lock has expired on the server.
const LEAST_FOR_WRONG: Duration = Duration::from_secs(6);
/// How often connections are closed where it takes that for a fault to be felt.
const STIR: Duration = Duration::from_millis(700);

/// What is tried.
pub(crate) struct Round {
    pub(crate) name: &'static str,
    pub(crate) fault: Injection,
    kinds: &'static [Kind],
    /// Whether the clients lock in a SQLite file, instead of on the server.
    in_file: bool,
    /// Whether calls may not fail, and whether no request can come late: see [`Facts`].
    sound: bool,
    punctual: bool,
}

/// The result.
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    pub(crate) verdict: Verdict,
    /// Where the histories are, if something was found.
    pub(crate) kept: Option<PathBuf>,
}

/// A wrong client among right ones: the checker has to find it.
pub(crate) const WRONG: &str = "a wrong client (wanted)";

/// What has to be found of it.
const WANTED: [&str; 2] = ["two valid holds", "permits out, and there are"];

/// All rounds, in their order.
pub(crate) fn all() -> Vec<Round> {
    let round = |name, fault, sound, punctual| Round {
        name,
        fault,
        kinds: &USUAL,
        in_file: false,
        sound,
        punctual,
    };
    let in_file = |name, fault, sound, punctual| Round {
        in_file: true,
        ..round(name, fault, sound, punctual)
    };
    let plain = |fault: Injection, sound, punctual| round(fault.about().0, fault, sound, punctual);
    vec![
        plain(Injection::None, true, true),
        round("cut within requests", Injection::Cuts(Cutter::new(Side::Request)), false, false),
        round("cut within replies", Injection::Cuts(Cutter::new(Side::Reply)), false, false),
        plain(Injection::Delays, false, false),
        plain(Injection::BlackHole, false, false),
        plain(Injection::ByteByByte, false, false),
        plain(Injection::RepeatedReplies, false, false),
        plain(Injection::ClientsKilled, true, true),
        plain(Injection::ClientsStopped, false, true),
        plain(Injection::ServerRestarted, false, false),
        plain(Injection::ServerFlushed, true, true),
        plain(Injection::ServerStopped, false, false),
        plain(Injection::ServerFull, false, false),
        plain(Injection::FewConnections, false, false),
        plain(Injection::FewDescriptors, false, false),
        plain(Injection::CablePulled, false, false),
        in_file("SQLite", Injection::None, true, true),
        in_file("SQLite: clients killed", Injection::ClientsKilled, true, true),
        // A process that is stopped inside a transaction locks the file.
        in_file("SQLite: clients stopped", Injection::ClientsStopped, false, true),
        in_file("SQLite: no descriptors", Injection::FewDescriptors, false, false),
        in_file("SQLite: disk full", Injection::DiskFull, false, false),
        Round {
            kinds: &[Kind::Credulous, Kind::C, Kind::Python],
            ..round(WRONG, Injection::None, true, false)
        },
    ]
}

impl Round {
    /// What it needs, with its files in `folder`: an error says why it cannot be run here.
    pub(crate) fn setting(&self, folder: &Path) -> io::Result<Setting> {
        let missing = |what, error| io::Error::other(format!("no {what} here: {error}"));
        let cable = match self.fault {
            Injection::CablePulled => {
                Some(Cable::lay().map_err(|error| missing("network namespaces", error))?)
            }
            _ => None,
        };
        let disk = match self.fault {
            Injection::DiskFull => {
                Some(Disk::mount().map_err(|error| missing("small disk", error))?)
            }
            _ => None,
        };
        let folder = disk.as_ref().map_or(folder, Disk::path);
        Ok(Setting { file: self.in_file.then(|| folder.join("locks.db")), cable, disk })
    }

    /// Whether that was found which was to be: nothing, unless a client is wrong on purpose.
    pub(crate) fn is_fine(&self, verdict: &Verdict) -> bool {
        let is_found = |what: &&str| verdict.violations.iter().any(|text| text.contains(what));
        match self.name {
            WRONG => WANTED.iter().all(is_found),
            _ => verdict.violations.is_empty() && verdict.hung.is_empty(),
        }
    }

    /// Lets it happen, and checks what was written down.
    pub(crate) fn run(
        &self,
        programs: &Programs,
        folder: &Path,
        time: Duration,
        setting: Setting,
    ) -> Result<Outcome, Failure> {
        let timeouts = if self.sound { LONG } else { SHORT };
        let mut world = World::new(programs, timeouts, setting, folder)?;
        world.gather(self.kinds)?;
        self.disturb(&mut world, time)?;
        if matches!(self.fault, Injection::ClientsKilled) {
            // What they hold comes back by itself, or not at all.
            world.crew.kill_all()?;
        }
        world.crew.dismiss()?;
        let mut calls = world.read(Duration::MAX)?;
        let mut tally = Tally::default();
        tally.add(&calls);
        calls.extend(world.open());
        let verdict = self.verdict_of(&world, &calls)?;
        let fine = self.is_fine(&verdict);
        let kept = (!fine).then(|| folder.to_owned());
        if fine {
            world.clean_up()?;
        }
        Ok(Outcome { tally, verdict, kept })
    }

    fn disturb(&self, world: &mut World, time: Duration) -> Result<(), Failure> {
        let (_, place, [lasting, gone]) = self.fault.about();
        // A server that is replaced within its first second gives fences that do not rise: see
        // DESIGN.md.
        if place == Place::Server {
            thread::sleep(FIRST_SECOND);
        }
        let end = now() + if self.name == WRONG { time.max(LEAST_FOR_WRONG) } else { time };
        let mut stirred = now();
        while now() + FIRST_SECOND < end {
            let undo = self.fault.begin(world)?;
            for (undo, (least, most)) in [(None, lasting), (Some(undo), gone)] {
                if let Some(undo) = undo {
                    undo(world)?;
                }
                let until = (now() + world.chance.millis(least, most)).min(end);
                while now() < until {
                    thread::sleep(STEP.min(until.saturating_sub(now())));
                    world.crew.see_who_ended()?;
                    if matches!(self.fault, Injection::FewConnections) && now() > stirred + STIR {
                        world.cut_all();
                        stirred = now();
                    }
                }
            }
        }
        Ok(())
    }

    fn verdict_of(&self, world: &World, calls: &[Call]) -> Result<Verdict, Failure> {
        let facts = Facts { sound: self.sound, punctual: self.punctual, ..world.facts(now()) };
        let mut verdict = check(calls, &facts);
        verdict.violations.extend(world.crew.misdeeds.iter().cloned());
        // A client that is killed, or cut off, may leave an entry that the next release or the next
        // wake-up removes.
        let left = world.queued()?;
        if self.sound && world.crew.deaths.is_empty() && left > 0 {
            verdict
                .violations
                .push(format!("{left} entries of processes that ended are left in the queues"));
        }
        verdict.violations.extend(world.stuck()?);
        Ok(verdict)
    }
}
