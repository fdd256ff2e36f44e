//! `make chaos`: a quorum of five memcacheds, eight processes in three languages that contend for
//! two mutexes on it, and servers, network and clients that fail at random.
//!
//! `chaos MINUTES`; SEED, CHAOS_C_CLIENT and PYTHON in the environment: see the Makefile. A seed
//! replays the faults and what the clients decide, not how the machine schedules them.
//!
//! Two kinds of time follow each other. In the one anything may fail, a majority and all servers at
//! once included. In the other three servers, and all ways to them, are well: two guards after its
//! beginning, each lock must make progress.
//!
//! The histories of the clients must show that no two valid holds overlap, that fences rise, that
//! nothing is lost before its deadline, and that no call hangs: see [`memlock_tests::check`].

// A program that reports by lines.
#![allow(clippy::print_stdout)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_tests::chance::Chance;
use memlock_tests::check::{Facts, Verdict, check};
use memlock_tests::history::{Call, Op, Span, answer};

use faults::Fault;
use processes::{ClientProcess, Kind, Programs, Way};
use report::Tally;
use servers::{CLIENTS, SERVERS, Servers};

mod faults;
#[path = "../faults/processes.rs"]
#[allow(dead_code, reason = "`make faults` uses the rest")]
mod processes;
#[path = "../faults/report.rs"]
#[allow(dead_code, reason = "`make faults` uses the rest")]
mod report;
mod servers;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const GUARD: Duration = Duration::from_secs(4);
/// A call that takes so much longer than its limit hangs: three attempts, in each of which five
/// servers take a connection and a reply.
const BOUND: Duration = Duration::from_secs(12);
/// The pause between the beginnings of two faults, in milliseconds.
const PAUSE: (u64, u64) = (50, 2500);
/// How long anything may fail, in milliseconds; and for how long three servers are well then.
const WILD: (u64, u64) = (8_000, 40_000);
const CALM: Duration = Duration::from_secs(25);
/// From then on each lock makes progress, in each piece of that length: for one guard it may be held
/// by a client that oversleeps, whose votes last two seconds longer.
const SETTLED: Duration = Duration::from_secs(2 * GUARD.as_secs());
const PIECE: Duration = Duration::from_secs(2 * GUARD.as_secs());
const NAMES: [&str; 2] = ["m0", "m1"];

const KINDS: [Kind; CLIENTS] = {
    use Kind::{C, Python, Rust};
    [C, Python, Rust, C, Python, C, Rust, C]
};

fn main() -> Result<ExitCode, Failure> {
    let minutes: f64 = std::env::args().nth(1).ok_or("chaos MINUTES")?.parse()?;
    let seed = match std::env::var("SEED") {
        Ok(seed) if !seed.is_empty() => seed.parse()?,
        _ => {
            let mut seed = [0; 4];
            SystemClock.random(&mut seed)?;
            u64::from(u32::from_ne_bytes(seed))
        }
    };
    let memory = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
    let folder = memory.unwrap_or_else(std::env::temp_dir);
    let folder = folder.join(format!("memlock-chaos-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    println!("Seed {seed}: SEED={seed} make chaos MINUTES={minutes} replays it.");
    let mut chaos = Chaos::start(&folder, seed)?;
    let end = now() + Duration::try_from_secs_f64(minutes * 60.0)?;
    // Once at least.
    loop {
        let wild = chaos.chance.millis(WILD.0, WILD.1);
        let left = end.saturating_sub(now() + CALM);
        chaos.pass(wild.min(left.max(Duration::from_secs(5))), &[])?;
        chaos.calm()?;
        chaos.line()?;
        if now() + CALM >= end {
            break;
        }
    }
    let fine = chaos.finish()?;
    println!("{}", if fine { "All as it should be." } else { "NOT as it should be." });
    if fine {
        std::fs::remove_dir_all(&folder)?;
    } else {
        println!("Seed {seed}. The histories are in {}", folder.display());
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Active {
    fault: Fault,
    ends: Duration,
}

struct Chaos {
    servers: Servers,
    clients: ClientProcess,
    chance: Chance,
    active: Vec<Active>,
    calls: Vec<Call>,
    tally: Tally,
    began: Duration,
    faults: usize,
    /// When three servers were well.
    calm: Vec<Span>,
    /// The faults, for the reader of the histories.
    log: File,
    /// What was found and printed.
    told: BTreeSet<String>,
}

impl Chaos {
    fn start(folder: &Path, seed: u64) -> Result<Chaos, Failure> {
        let mut chance = Chance(seed);
        let servers = Servers::start()?;
        let mut clients = ClientProcess::new(&programs()?, folder, chance.number());
        let url = format!(
            "memcached://{}/?quorum=majority&guard={}s&io_timeout=300ms&connect_timeout=300ms&outage=2s",
            servers.addresses().join(","),
            GUARD.as_secs()
        );
        for (client, kind) in KINDS.into_iter().enumerate() {
            let namespace = servers.namespace(client);
            clients.start(kind, &Way { url: url.clone(), namespace })?;
        }
        clients.see_them_begin()?;
        Ok(Chaos {
            servers,
            clients,
            chance,
            active: Vec::new(),
            calls: Vec::new(),
            tally: Tally::default(),
            began: now(),
            faults: 0,
            calm: Vec::new(),
            log: File::create(folder.join("faults"))?,
            told: BTreeSet::new(),
        })
    }

    /// Lets some time pass, with faults that spare these servers.
    fn pass(&mut self, time: Duration, spared: &[usize]) -> Result<(), Failure> {
        let end = now() + time;
        let mut next = now();
        while now() < end {
            thread::sleep(Duration::from_millis(10));
            self.clients.see_who_ended()?;
            self.end(|active| active.ends <= now())?;
            if now() < next {
                continue;
            }
            next = now() + self.chance.millis(PAUSE.0, PAUSE.1);
            let down: Vec<usize> =
                self.active.iter().flat_map(|active| active.fault.servers()).collect();
            let Some(mut fault) = Fault::any(&mut self.chance, spared, &down) else { continue };
            let ends = now() + fault.lasts(&mut self.chance);
            writeln!(self.log, "{:.3} begin {fault:?}", now().as_secs_f64())?;
            fault.begin(&mut self.servers, &mut self.clients)?;
            self.active.push(Active { fault, ends });
            self.faults += 1;
        }
        Ok(())
    }

    fn end(&mut self, ends: impl Fn(&Active) -> bool) -> Result<(), Failure> {
        let (over, active) = std::mem::take(&mut self.active).into_iter().partition(ends);
        self.active = active;
        let over: Vec<Active> = over;
        for Active { fault, .. } in over {
            writeln!(self.log, "{:.3} end {fault:?}", now().as_secs_f64())?;
            fault.end(&mut self.servers, &mut self.clients)?;
        }
        Ok(())
    }

    /// Three servers are well from now on, and all ways to them.
    fn calm(&mut self) -> Result<(), Failure> {
        self.end(|_| true)?;
        let from = now();
        let first = self.chance.below(SERVERS as u64) as usize;
        let spared: Vec<usize> = (0..3).map(|place| (first + 2 * place) % SERVERS).collect();
        writeln!(self.log, "{:.3} calm {spared:?}", now().as_secs_f64())?;
        self.pass(CALM, &spared)?;
        self.calm.push(Span { from, to: now() });
        Ok(())
    }

    fn read(&mut self, until: Duration) -> Result<(), Failure> {
        for reader in &mut self.clients.readers {
            let new = reader.read(until)?;
            self.tally.add(&new);
            self.calls.extend(new);
        }
        Ok(())
    }

    fn verdict(&self, now: Duration) -> Verdict {
        let facts = Facts {
            stops: self.clients.stops(now),
            deaths: self.clients.deaths.clone(),
            recovers: true,
            bound: BOUND,
            now,
            ..Facts::default()
        };
        let open = self.clients.readers.iter().flat_map(|reader| reader.open().cloned());
        let calls: Vec<Call> = self.calls.iter().cloned().chain(open).collect();
        let mut verdict = check(&calls, &facts);
        for calm in &self.calm {
            let mut from = calm.from + SETTLED;
            while from + PIECE <= calm.to {
                let piece = Span { from, to: from + PIECE };
                let idle = NAMES.into_iter().filter(|name| !progresses(&calls, name, piece));
                verdict.violations.extend(idle.map(|name| {
                    format!("no progress: {name} from {:.3} s on", from.as_secs_f64())
                }));
                from += PIECE;
            }
        }
        verdict
    }

    fn line(&mut self) -> Result<(), Failure> {
        let until = now();
        self.read(until)?;
        let verdict = self.verdict(until);
        self.report(&verdict);
        Ok(())
    }

    fn report(&mut self, verdict: &Verdict) {
        let Tally { calls, granted, refused, lost, unreachable, unknown, protocol, .. } =
            self.tally;
        println!(
            "{:5.1} min: {} faults, {calls} calls, {granted} granted, {refused} refused, {lost} lost, \
             {unreachable} unreachable, {unknown} unknown, {protocol} protocol; {} violations, {} hung, \
             {:.1} s past a limit at most",
            now().saturating_sub(self.began).as_secs_f64() / 60.0,
            self.faults,
            verdict.violations.len(),
            verdict.hung.len(),
            verdict.latest.as_secs_f64()
        );
        let misdeeds = &self.clients.misdeeds;
        let lost = verdict.losses.iter().map(|loss| format!("lost: {loss}"));
        let found = verdict.violations.iter().chain(&verdict.hung).chain(misdeeds).cloned();
        for finding in found.chain(lost).collect::<Vec<_>>() {
            if self.told.insert(finding.clone()) {
                println!("    {finding}");
            }
        }
    }

    /// True if all was as it should be.
    fn finish(mut self) -> Result<bool, Failure> {
        self.end(|_| true)?;
        self.clients.dismiss()?;
        self.read(Duration::MAX)?;
        let verdict = self.verdict(now());
        self.report(&verdict);
        let half_lines = self.clients.half_lines();
        half_lines.iter().for_each(|line| println!("    {line}"));
        Ok(self.told.is_empty() && half_lines.is_empty() && self.tally.granted > 0)
    }
}

/// Whether the lock was granted or extended in that time.
fn progresses(calls: &[Call], name: &str, piece: Span) -> bool {
    calls.iter().any(|call| {
        let held = matches!(call.op, Op::Lock { .. } | Op::Extend { .. });
        let within = piece.from <= call.ended() && call.ended() <= piece.to;
        held && within && call.name == name && call.answer() == Some(answer::OK)
    })
}

fn programs() -> Result<Programs, Failure> {
    let told = |name: &str| {
        std::env::var_os(name).ok_or(format!("{name} is not set: run this by `make chaos`"))
    };
    Ok(Programs {
        c: told("CHAOS_C_CLIENT")?.into(),
        python: told("PYTHON")?.into(),
        script: Path::new(env!("CARGO_MANIFEST_DIR")).join("chaos/client.py"),
        rust: std::env::current_exe()?.with_file_name("chaos-client"),
    })
}

fn now() -> Duration {
    SystemClock.now().since_boot()
}
