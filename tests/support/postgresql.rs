//! A real PostgreSQL of a test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::launch::{START_LIMIT, as_nobody, at_exit, give, number, poll_until, run, until};
use crate::process::{Program, Server, ServerProcess};
use crate::stranger::Stranger;
use crate::wrong_clock::shift;

/// A running server, and the files that it has. Everybody may log in as `memlock`, who owns the
/// server.
#[derive(Debug)]
pub struct Postgresql {
    process: ServerProcess,
    files: PathBuf,
    /// What its URL has behind the question mark.
    parameters: String,
    /// The process that has started it: a forked child ends nothing.
    owner: u32,
}

#[derive(Debug)]
struct Settings {
    files: PathBuf,
    settings: Vec<String>,
    /// By how many seconds its wall clock is ahead.
    ahead: i64,
}

impl Postgresql {
    /// Starts one.
    pub fn start() -> Postgresql {
        Postgresql::with(&[])
    }

    /// Starts one with settings such as `fsync=off`.
    pub fn with(settings: &[&str]) -> Postgresql {
        let files = new_files();
        let mut copy = program("cp");
        copy.arg("-a").arg(template().join("data")).arg(&files);
        run(copy);
        Postgresql::on(files, settings)
    }

    /// Starts one on files that are there, and are removed with it.
    pub fn on(files: PathBuf, settings: &[&str]) -> Postgresql {
        Postgresql::with_clock(files, settings, 0)
    }

    /// As [`Postgresql::on`], with a wall clock that is ahead by so many seconds.
    pub fn with_clock(files: PathBuf, settings: &[&str], ahead: i64) -> Postgresql {
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        end_with_the_process(&files);
        let process = ServerProcess::start(Settings { files: files.clone(), settings, ahead });
        Postgresql { process, files, parameters: String::new(), owner: std::process::id() }
    }

    /// A copy of its files, with which a standby can be started.
    pub fn copy(&self) -> PathBuf {
        let files = new_files();
        let mut backup = program("pg_basebackup");
        backup.args(["-h", "127.0.0.1", "-U", "memlock", "-R", "-X", "stream", "-c", "fast"]);
        backup.args(["-p", &self.process.port().to_string(), "-D"]).arg(files.join("data"));
        run(backup);
        files
    }

    /// Starts its only standby, with a wall clock that is ahead by so many seconds. Returns once the
    /// standby has replied to this server.
    pub fn standby(&self, ahead: i64) -> Postgresql {
        let standby =
            Postgresql::with_clock(self.copy(), &["wal_receiver_status_interval=1"], ahead);
        // That of the copy replies, too.
        let replies = "SELECT reply_time IS NOT NULL FROM pg_stat_replication \
                       WHERE application_name = 'walreceiver'";
        until("the standby replies", || self.sql(replies) == "t");
        standby
    }

    /// The same server, with parameters in its URL, such as `durable=yes`.
    pub fn with_parameters(mut self, parameters: &str) -> Postgresql {
        self.parameters = format!("?{parameters}");
        self
    }

    /// One that all tests of this process share.
    pub fn shared() -> &'static Postgresql {
        static SHARED: OnceLock<Postgresql> = OnceLock::new();
        SHARED.get_or_init(Postgresql::start)
    }

    /// Its URL by its Unix socket.
    pub fn socket_url(&self) -> String {
        let port = self.process.port();
        format!("postgresql:///postgres?user=memlock&port={port}&host={}", self.files.display())
    }

    /// Where its files are: its log, its socket, and `data`.
    pub fn files(&self) -> &Path {
        &self.files
    }

    /// What it has logged.
    pub fn logged(&self) -> String {
        fs::read_to_string(self.files.join("log")).unwrap_or_default()
    }

    /// psql, logged in there.
    pub fn psql(&self) -> Command {
        psql(self.process.port())
    }

    /// Another program there.
    pub fn stranger(&self) -> Stranger {
        Stranger::at(self.psql(), "\\echo done")
    }

    /// Runs statements, and returns what they print.
    pub fn try_sql(&self, text: &str) -> Result<String, String> {
        let ran = self.psql().args(["-c", text]).output().expect("psql cannot be run");
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if ran.status.success() { Ok(words(&ran.stdout)) } else { Err(words(&ran.stderr)) }
    }

    /// As [`Postgresql::try_sql`], which must succeed.
    pub fn sql(&self, text: &str) -> String {
        self.try_sql(text).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    /// Creates a schema of functions, operators, types and views that have the names of built-in
    /// ones. The server logs a warning of an `INTRUDER` when one is used.
    pub fn shadow(&self, schema: &str) {
        self.sql(&include_str!("shadows.sql").replace("{schema}", schema));
    }

    /// Stops it in good order, and waits until it is gone.
    pub fn stop(&self) {
        self.process.signal(libc::SIGINT);
        let gone = || processes(&self.files).is_empty().then_some(());
        assert!(poll_until(START_LIMIT, gone).is_some(), "the server does not stop");
    }
}

impl Server for Postgresql {
    fn process(&self) -> &ServerProcess {
        &self.process
    }

    fn url_at(&self, address: &str) -> String {
        format!("postgresql://memlock@{address}/postgres{}", self.parameters)
    }

    /// Kills all of its processes, as a power failure would.
    fn kill(&self) {
        assert!(kill_all(&self.files), "processes of a dead server live on");
        self.process.kill();
    }

    fn restart(&self) {
        self.kill();
        self.process.restart();
    }

    fn pause(&self) {
        self.process.pause();
        signal_all(&self.files, libc::SIGSTOP);
    }

    fn resume(&self) {
        signal_all(&self.files, libc::SIGCONT);
    }
}

impl Drop for Postgresql {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            self.kill();
            let _ = fs::remove_dir_all(&self.files);
        }
    }
}

impl Program for Settings {
    fn command(&self, port: u16) -> Command {
        let mut command = Command::new("/bin/sh");
        // What it prints is its log.
        command.args(["-c", "exec \"$@\" >> \"$0/log\" 2>&1"]).arg(&self.files);
        command.arg(path_of("postgres")).arg("-D").arg(self.files.join("data"));
        command.arg("-k").arg(&self.files).args(["-p", &port.to_string()]);
        command.args(["-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=16MB"]);
        // In its files, so that nothing is left of a server that was killed.
        command.args(["-c", "dynamic_shared_memory_type=mmap"]);
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        if self.ahead != 0 {
            shift(&mut command, self.ahead);
        }
        as_nobody(&mut command);
        command.current_dir("/");
        command
    }

    fn answers(&self, port: u16, pid: u32) -> bool {
        let file = fs::read_to_string(self.files.join("data/postmaster.pid"));
        file.is_ok_and(|text| text.lines().next() == Some(&pid.to_string()))
            && psql(port)
                .args(["-c", "SELECT 1"])
                .output()
                .is_ok_and(|asked| asked.status.success())
    }
}

fn psql(port: u16) -> Command {
    let mut psql = program("psql");
    psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1"]);
    psql.args(["-U", "memlock", "-d", "postgres", "-p", &port.to_string()]);
    psql
}

/// Its processes, that are not dead, by its files.
fn processes(files: &Path) -> Vec<libc::pid_t> {
    let data = files.join("data");
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = processes.flatten().filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        (fs::read_link(entry.path().join("cwd")).ok()? == data).then_some(id)
    });
    ids.collect()
}

fn signal_all(files: &Path, signal: libc::c_int) {
    for process in processes(files) {
        // SAFETY: the process works in the directory of the server that this test has started.
        unsafe { libc::kill(process, signal) };
    }
}

/// Whether they are gone.
fn kill_all(files: &Path) -> bool {
    let gone = || {
        signal_all(files, libc::SIGKILL);
        processes(files).is_empty().then_some(())
    };
    poll_until(START_LIMIT, gone).is_some()
}

/// Also if it is in a static, and so not dropped.
fn end_with_the_process(files: &Path) {
    let files = files.to_owned();
    at_exit(move || {
        if files.exists() {
            kill_all(&files);
            let _ = fs::remove_dir_all(files);
        }
    });
}

/// Files of a server, which are made once in this process, and copied for each server.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let name = format!("memlock-pg-{}-template", std::process::id());
        let files = std::env::temp_dir().join(name);
        end_with_the_process(&files);
        create(&files);
        let mut init = program("initdb");
        init.arg("-D").arg(files.join("data"));
        init.args(["-A", "trust", "-U", "memlock", "--no-sync", "-E", "UTF8", "--locale", "C"]);
        // Less to copy.
        init.arg("--wal-segsize=1");
        run(init);
        files
    })
}

/// A directory for the files of a server.
fn new_files() -> PathBuf {
    let name = format!("memlock-pg-{}-{}", std::process::id(), number());
    let files = std::env::temp_dir().join(name);
    create(&files);
    files
}

/// Creates a directory for the files of a server.
fn create(files: &Path) {
    // One of an earlier process that was killed.
    let _ = fs::remove_dir_all(files);
    fs::create_dir(files).expect("the directory of a server");
    give(files);
}

/// A program of PostgreSQL, run by a user that is not root.
pub fn program(name: &str) -> Command {
    let mut command = Command::new(path_of(name));
    as_nobody(&mut command);
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// Debian keeps them out of the path.
fn path_of(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let paths = versions.map(|version| version.path().join("bin").join(name));
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.exists()).collect();
    paths.sort();
    paths.pop().unwrap_or_else(|| PathBuf::from(name))
}
