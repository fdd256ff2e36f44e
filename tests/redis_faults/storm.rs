//! Processes that fight for locks and permits, while connections are killed, scripts forgotten, the
//! server stopped, killed and restarted, and the processes themselves killed.
//!
//! `MEMLOCK_STORM` says for how many seconds.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{Client, ErrorKind, Lock, Release};
use memlock_tests::assert_safe;
use memlock_tests::chance::random;
use memlock_tests::process::Server;
use memlock_tests::url;
use memlock_tests::witness::Witness;

use crate::PATIENCE;
use crate::stores::redis::{Redis, reply};

/// By which a child of the test knows what it is to do: the URL, and the directory of witnesses.
const URL: &str = "MEMLOCK_TEST_REDIS_STORM";
const WITNESSES: &str = "MEMLOCK_TEST_REDIS_WITNESSES";
const LEASE: Duration = Duration::from_secs(2);
/// A holder with less than this does nothing with what it holds: on a busy machine it might be late.
const ENOUGH: Duration = Duration::from_millis(800);
const NAMES: u64 = 3;
const PERMITS: u32 = 2;
const WORKERS: usize = 8;
/// A worker has its two clients' connections, its witnesses, and what every process has.
const MOST_DESCRIPTORS: usize = 60;

/// A witness also has the greatest fence so far.
fn rises(mut file: &File, lock: &Lock) {
    let fence = lock.fence();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    let last = text.parse().unwrap_or(0);
    if fence <= last {
        // A holder that overslept its lease may come here after its successor.
        return assert_safe!(lock.remaining().is_zero(), "fence {fence} after {last}");
    }
    file.rewind().unwrap();
    // Fences have the same number of digits for the next 300 years.
    write!(file, "{fence}").unwrap();
}

/// Mostly short; sometimes as long as the server takes to be restarted.
fn work() {
    let longest = if random().is_multiple_of(8) { 300_000 } else { 3000 };
    thread::sleep(Duration::from_micros(random() % longest));
}

/// Whether the failure is one of those that a storm may bring.
fn is_weather(error: &memlock_core::Error) -> bool {
    let known = [ErrorKind::Unreachable, ErrorKind::Unknown, ErrorKind::NotFound];
    assert!(known.contains(&error.kind()), "{:?} {error}", error.kind());
    true
}

/// Not a test of its own: what the children of the other do.
#[test]
fn worker() {
    let (Ok(url), Ok(directory)) = (std::env::var(URL), std::env::var(WITNESSES)) else { return };
    let directory = PathBuf::from(directory);
    let client = Client::connect(&url).unwrap();
    let semaphore = client.semaphore("s", PERMITS, LEASE).unwrap();
    let (mut rounds, mut lost) = (0_u64, 0_u64);
    println!("ready");
    loop {
        rounds += 1;
        let name = format!("m{}", random() % NAMES);
        let mutex = client.mutex(&name, LEASE).unwrap();
        match mutex.lock_for(Duration::from_secs(1)) {
            Err(error) => assert!(is_weather(&error)),
            Ok(None) => {}
            Ok(Some(mut lock)) => {
                if lock.remaining() > ENOUGH {
                    let path = directory.join(&name);
                    match Witness::take(&path) {
                        // Others may have held it by now.
                        Some(_) if lock.remaining().is_zero() => {}
                        Some(witness) => {
                            Witness::note_end(&path, lock.deadline());
                            rises(&witness.0, &lock);
                            work();
                        }
                        None => assert!(
                            Witness::is_over(&path) || lock.remaining().is_zero(),
                            "{name} is held twice"
                        ),
                    }
                }
                let ends = lock.remaining();
                match lock.unlock() {
                    Err(error) => assert!(is_weather(&error)),
                    Ok(Release::Released) => {}
                    Ok(_) if ends.is_zero() || lock.remaining().is_zero() => lost += 1,
                    Ok(release) => panic!("{name}: {release:?} with {ends:?} left"),
                }
            }
        }
        let _ = semaphore.set_up(Duration::from_secs(3600)).map_err(|error| is_weather(&error));
        match semaphore.acquire_for(Duration::from_secs(1)) {
            Err(error) => assert!(is_weather(&error)),
            Ok(None) => {}
            Ok(Some(mut permit)) => {
                if permit.remaining() > ENOUGH {
                    let places: Vec<PathBuf> =
                        (0..PERMITS).map(|place| directory.join(format!("s{place}"))).collect();
                    let taken = places.iter().find_map(|path| Some((path, Witness::take(path)?)));
                    match &taken {
                        Some((path, _)) => Witness::note_end(path, permit.deadline()),
                        None => assert!(
                            places.iter().any(|path| Witness::is_over(path))
                                || permit.remaining().is_zero(),
                            "more than {PERMITS} permits are held"
                        ),
                    }
                    work();
                }
                if let Err(error) = permit.release() {
                    assert!(is_weather(&error));
                }
            }
        }
        if rounds.is_multiple_of(100) {
            println!("{rounds} rounds, {lost} lost");
        }
    }
}

struct Worker {
    child: Child,
    /// Where what it says goes.
    said: PathBuf,
}

impl Worker {
    fn start(url: &str, directory: &Path) -> Worker {
        let said = directory.join(format!("said-{}", random()));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["storm::worker", "--exact", "--nocapture"])
            .env(URL, url)
            .env(WITNESSES, directory)
            .stdout(Stdio::piped())
            .stderr(File::create(&said).unwrap())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("ready")));
        thread::spawn(move || lines.for_each(drop));
        Worker { child, said }
    }

    fn is_well(&mut self) {
        let ended = self.child.try_wait().unwrap();
        let said = || std::fs::read_to_string(&self.said).unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", said());
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count();
        assert!(open < MOST_DESCRIPTORS, "{open} descriptors are open");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "real time: make prove"]
fn nothing_is_granted_twice_and_nothing_leaks_in_a_storm() {
    let seconds = std::env::var("MEMLOCK_STORM").map_or(6, |text| text.parse().unwrap());
    let durable =
        ["--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "yes"];
    let server = Redis::start(&durable);
    let directory = std::env::temp_dir().join(format!("memlock-storm-{}", random()));
    std::fs::create_dir(&directory).unwrap();
    let url = url::with(&server.url(), "io_timeout=500ms&connect_timeout=500ms&outage=2s");
    let mut workers: Vec<Worker> = (0..WORKERS).map(|_| Worker::start(&url, &directory)).collect();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut admin = server.connection();
    while Instant::now() < end {
        thread::sleep(Duration::from_millis(random() % 30));
        let _: redis::RedisResult<redis::Value> = match random() % 40 {
            0..12 => redis::cmd("SCRIPT").arg("FLUSH").query(&mut admin),
            12..24 => redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut admin),
            24..32 => redis::cmd("DEBUG").arg("SLEEP").arg("0.15").query(&mut admin),
            32 => redis::cmd("DEBUG").arg("SLEEP").arg("0.7").query(&mut admin),
            33..36 => redis::cmd("CLIENT").arg(&["PAUSE", "100", "WRITE"]).query(&mut admin),
            36 => {
                server.restart();
                admin = server.connection();
                Ok(redis::Value::Nil)
            }
            _ => {
                let victim = random() as usize % WORKERS;
                workers[victim].is_well();
                workers[victim] = Worker::start(&url, &directory);
                Ok(redis::Value::Nil)
            }
        };
        workers.iter_mut().for_each(Worker::is_well);
    }
    drop(workers);
    // Every lock comes free, and nothing lives forever.
    let client = Client::connect(&server.url()).unwrap();
    for name in 0..NAMES {
        let lock = client.mutex(format!("m{name}"), LEASE).unwrap().lock_for(PATIENCE).unwrap();
        assert_eq!(
            lock.expect("the dead hold it for their lease").unlock().unwrap(),
            Release::Released
        );
    }
    let semaphore = client.open_semaphore("s", LEASE).unwrap();
    let permits: Vec<_> =
        (0..PERMITS).map(|_| semaphore.acquire_for(PATIENCE).unwrap().unwrap()).collect();
    drop(permits);
    assert!(semaphore.tear_down().unwrap());
    let keys: Vec<String> = server.reply(&["KEYS", "*"]);
    let mut admin = server.connection();
    for key in keys {
        let left: i64 = reply(&mut admin, &["PTTL", &key]);
        assert!(key.starts_with("%fence") || left > 0 || left == -2, "{key} lives forever");
    }
    std::fs::remove_dir_all(directory).unwrap();
}
