//! A worker of the demo, in Rust. `worker.c`, `worker.cpp` and `worker.py` do the same steps;
//! `../README.md` describes their behaviour and output.
//!
//! ```text
//! demo-worker URL PLAN REPORT FIRST [--stall]
//! ```

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program writes to its standard streams"
)]

use std::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::{Client, DistinctList, Insertion, Release};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A dead worker's unit is free after this.
const LEASE: Duration = Duration::from_secs(3);
/// How long to wait for a unit that another worker holds.
const PATIENCE: Duration = Duration::from_secs(10);
/// The lists expire after this.
const SESSION: Duration = Duration::from_secs(600);

/// A piece of a file.
struct Unit {
    offset: u64,
    length: usize,
    path: PathBuf,
}

/// Processes units, and reports each step.
struct Worker {
    client: Client,
    words: DistinctList,
    done: DistinctList,
    report: BufWriter<File>,
    stall: bool,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    units_done: usize,
    words_read: usize,
    words_new: usize,
    units_busy: usize,
}

impl Worker {
    /// False if another worker holds the unit for all of `patience`.
    fn work_on(&mut self, number: usize, unit: &Unit, patience: Duration) -> Result<bool> {
        let name = format!("unit:{number}");
        let mutex = self.client.mutex(&name, LEASE)?;
        let Some(mut lock) = mutex.lock_for(patience)? else { return Ok(false) };

        writeln!(self.report, "hold {number} {} {}", lock.fence(), boot_clock_ns())?;
        if !self.done.contains(&name)?.ok_or("the list of what is done has ended")? {
            self.count_words(unit, &name)?;
            // Still under the mutex: the next holder must find the unit done.
            match self.done.insert(&name)? {
                Some(Insertion::First(_)) => {}
                other => return Err(format!("{name} cannot be marked as done: {other:?}").into()),
            }
            writeln!(self.report, "done {number}")?;
            println!("done {name}");
            self.counts.units_done += 1;
        }
        writeln!(self.report, "free {number} {}", boot_clock_ns())?;
        match lock.unlock()? {
            Release::Released => Ok(true),
            other => Err(format!("{name} was not ours to the end: {other:?}").into()),
        }
    }

    fn count_words(&mut self, unit: &Unit, name: &str) -> Result<()> {
        let text = unit.read()?;
        let found: Vec<&[u8]> =
            text.split(|&byte| !in_word(byte)).filter(|word| !word.is_empty()).collect();
        if self.stall {
            self.insert(&found[..found.len() / 2])?;
            self.die_in_the_middle(name)?;
        }
        self.insert(&found)
    }

    /// One call for all words. The first inserter creates the id, and all inserters get it.
    fn insert(&mut self, keys: &[&[u8]]) -> Result<()> {
        let insertions = self.words.insert_many(keys)?.ok_or("the list of words has ended")?;
        for (key, insertion) in keys.iter().zip(insertions) {
            let is_new = matches!(insertion, Insertion::First(_));
            self.counts.words_new += usize::from(is_new);
            write!(self.report, "id {} {} ", insertion.id(), if is_new { "new" } else { "dup" })?;
            self.report.write_all(key)?;
            self.report.write_all(b"\n")?;
        }
        self.counts.words_read += keys.len();
        Ok(())
    }

    fn die_in_the_middle(&mut self, name: &str) -> Result<()> {
        self.report.flush()?;
        println!("holding {name}");
        loop {
            std::thread::park();
        }
    }
}

impl Unit {
    /// From a line of the plan.
    fn parse(line: &[u8]) -> Option<Unit> {
        let mut fields = line.splitn(3, |&byte| byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<u64>().ok();
        let (offset, length) = (number()?, usize::try_from(number()?).ok()?);
        Some(Unit { offset, length, path: OsStr::from_bytes(fields.next()?).into() })
    }

    /// The unit's text, with A to Z converted to a to z.
    fn read(&self) -> Result<Vec<u8>> {
        let mut text = vec![0; self.length];
        File::open(&self.path)?.read_exact_at(&mut text, self.offset)?;
        text.make_ascii_lowercase();
        Ok(text)
    }
}

/// A word is a longest run of ASCII letters and of bytes from 0x80 up.
fn in_word(byte: u8) -> bool {
    byte >= 0x80 || byte.is_ascii_alphabetic()
}

fn boot_clock_ns() -> u128 {
    SystemClock.now().since_boot().as_nanos()
}

fn read_plan(path: &Path) -> Result<Vec<Unit>> {
    let lines = BufReader::new(File::open(path)?).split(b'\n');
    lines.map(|line| Unit::parse(&line?).ok_or_else(|| "the plan cannot be read".into())).collect()
}

fn work(arguments: &[String]) -> Result<()> {
    let [url, plan, report, first, stall @ ..] = arguments else {
        return Err("usage: demo-worker URL PLAN REPORT FIRST [--stall]".into());
    };
    let units = read_plan(Path::new(plan))?;
    let first: usize = first.parse()?;
    let report = BufWriter::new(File::create(report)?);

    let client = Client::connect(url)?;
    // The first process sets the lists up, and the others join them.
    let mut words = client.distinct_list("words")?;
    let _ = words.set_up(SESSION)?;
    let mut done = client.distinct_list("done")?;
    let _ = done.set_up(SESSION)?;
    let stall = stall.first().is_some_and(|flag| flag == "--stall");
    let mut worker = Worker { client, words, done, report, stall, counts: Counts::default() };

    // All workers start at the same time: the demo answers when the last one is ready.
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;

    // All units, from a different starting point in each worker; busy units come last.
    let mut left = Vec::new();
    for number in (first..units.len()).chain(0..first) {
        if !worker.work_on(number, &units[number], Duration::ZERO)? {
            left.push(number);
        }
    }
    worker.counts.units_busy = left.len();
    for number in left {
        if !worker.work_on(number, &units[number], PATIENCE)? {
            return Err(format!("unit:{number} never came free").into());
        }
    }

    let Worker {
        mut report, counts: Counts { units_done, words_read, words_new, units_busy }, ..
    } = worker;
    writeln!(report, "total {units_done} {words_read} {words_new} {units_busy}")?;
    report.flush()?;
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match work(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker.rs: {error}");
            ExitCode::FAILURE
        }
    }
}
