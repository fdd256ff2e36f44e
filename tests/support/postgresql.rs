//! A real PostgreSQL of a test's own.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::launch::{ReservedPort, START_LIMIT, end, nobody, poll_until, spawn};

/// A running server, which the kernel ends with this process. Everybody may log in as `memlock`, who
/// owns the database `memlock`.
#[derive(Debug)]
pub struct Postgresql {
    port: ReservedPort,
    child: Child,
    directory: PathBuf,
    settings: Vec<String>,
    /// The process that has started it: a forked child ends nothing.
    owner: u32,
}

impl Postgresql {
    /// Starts one with few buffers.
    #[must_use]
    pub fn start() -> Postgresql {
        Postgresql::with(&[])
    }

    /// Starts one with settings such as `fsync=off`.
    #[must_use]
    pub fn with(settings: &[&str]) -> Postgresql {
        let port = ReservedPort::any();
        let name = format!("memlock-pg-{}-{}", std::process::id(), port.number());
        Postgresql::at(std::env::temp_dir().join(name), port, settings)
    }

    /// One that all tests of this process share. It ends with the process, and its files with it.
    #[must_use]
    pub fn shared() -> &'static Postgresql {
        extern "C" fn clear() {
            if let Some(server) = SHARED.get()
                && server.owner == std::process::id()
            {
                server.kill_all();
                let _ = fs::remove_dir_all(&server.directory);
            }
        }
        static SHARED: OnceLock<Postgresql> = OnceLock::new();
        SHARED.get_or_init(|| {
            // SAFETY: the function may run at the end of the process: it uses nothing that ended.
            assert_eq!(unsafe { libc::atexit(clear) }, 0);
            Postgresql::start()
        })
    }

    /// Starts one with its files in this directory, which is created.
    #[must_use]
    pub fn at(directory: PathBuf, port: ReservedPort, settings: &[&str]) -> Postgresql {
        fs::create_dir(&directory).expect("the directory of a server");
        give(&directory);
        let mut init = program("initdb");
        init.arg("-D").arg(directory.join("data"));
        init.args(["-A", "trust", "-U", "memlock", "--no-sync", "-E", "UTF8", "--locale", "C"]);
        let made = init.stdout(Stdio::null()).output().expect("initdb cannot be run");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let child = launch(&directory, port.number(), &settings);
        let server = Postgresql { port, child, directory, settings, owner: std::process::id() };
        server.wait();
        server.sql("template1", "CREATE DATABASE memlock");
        server
    }

    fn wait(&self) {
        let answers = || {
            TcpStream::connect(("127.0.0.1", self.port())).ok()?;
            self.try_sql("template1", "SELECT 1").ok()
        };
        let log = || fs::read_to_string(self.log()).unwrap_or_default();
        assert!(poll_until(START_LIMIT, answers).is_some(), "postgres: {}", log());
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgresql://memlock@127.0.0.1:{}/memlock", self.port())
    }

    /// Its URL by its Unix socket.
    #[must_use]
    pub fn socket_url(&self) -> String {
        let port = self.port();
        format!("postgresql:///memlock?user=memlock&port={port}&host={}", self.directory.display())
    }

    /// Where its files are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file of its log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The id of its first process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// A session of its own.
    #[must_use]
    pub fn psql(&self, database: &str) -> Command {
        let mut psql = program("psql");
        let port = self.port().to_string();
        psql.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            "127.0.0.1",
            "-U",
            "memlock",
        ]);
        psql.args(["-p", &port, "-d", database]);
        psql
    }

    /// Runs statements, and returns what they print.
    ///
    /// # Errors
    /// What psql says.
    pub fn try_sql(&self, database: &str, text: &str) -> Result<String, String> {
        let ran = self.psql(database).args(["-c", text]).output().expect("psql cannot be run");
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if ran.status.success() { Ok(words(&ran.stdout)) } else { Err(words(&ran.stderr)) }
    }

    /// As [`Postgresql::try_sql`], which must succeed.
    pub fn sql(&self, database: &str, text: &str) -> String {
        self.try_sql(database, text).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    /// Kills all of its processes, as a power failure would.
    pub fn crash(&mut self) {
        self.kill_all();
        end(&mut self.child);
    }

    fn kill_all(&self) {
        let gone = || {
            self.signal_all(libc::SIGKILL);
            self.children().is_empty().then_some(())
        };
        assert!(poll_until(START_LIMIT, gone).is_some(), "processes of a dead server live on");
    }

    /// Stops it in good order.
    pub fn stop(&mut self) {
        self.signal(libc::SIGINT);
        self.child.wait().expect("a server that was stopped ends");
    }

    /// Starts it again, with its files.
    pub fn start_again(&mut self) {
        let _ = fs::remove_file(self.directory.join("data/postmaster.pid"));
        self.child = launch(&self.directory, self.port(), &self.settings);
        self.wait();
    }

    /// Sends a signal to its first process.
    pub fn signal(&self, signal: libc::c_int) {
        let id = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: the child is not yet waited for.
        unsafe { libc::kill(id, signal) };
    }

    /// Sends a signal to all of its processes.
    pub fn signal_all(&self, signal: libc::c_int) {
        for child in self.children() {
            // SAFETY: the process is a child of the server that this test has started.
            unsafe { libc::kill(child, signal) };
        }
        self.signal(signal);
    }

    /// The processes whose working directory is the server's.
    fn children(&self) -> Vec<libc::pid_t> {
        let data = self.directory.join("data");
        let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
        let ids = processes.flatten().filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse::<libc::pid_t>().ok()?;
            (fs::read_link(entry.path().join("cwd")).ok()? == data).then_some(id)
        });
        let first = libc::pid_t::try_from(self.child.id()).expect("a process id");
        ids.filter(|&id| id != first).collect()
    }
}

impl Drop for Postgresql {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        self.crash();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A program of PostgreSQL, which Debian keeps out of the path, run by a user that is not root.
fn program(name: &str) -> Command {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = versions
        .map(|version| version.path().join("bin").join(name))
        .filter(|path| path.exists())
        .collect();
    paths.sort();
    let mut command = Command::new(paths.pop().unwrap_or_else(|| PathBuf::from(name)));
    as_nobody(&mut command);
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// Runs the command as `nobody`, if this is root.
pub fn as_nobody(command: &mut Command) {
    // SAFETY: geteuid always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        let (user, group) = nobody();
        command.uid(user).gid(group);
    }
}

/// Gives a directory to the user that servers run as.
pub fn give(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("a directory of ours");
    // SAFETY: geteuid always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        let (user, group) = nobody();
        chown(directory, Some(user), Some(group)).expect("a directory of ours");
    }
}

fn launch(directory: &Path, port: u16, settings: &Vec<String>) -> Child {
    let log = fs::File::options().append(true).create(true).open(directory.join("log"));
    let log = log.expect("the log of a server");
    let mut command = program("postgres");
    command.arg("-D").arg(directory.join("data")).arg("-k").arg(directory);
    command.args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
    command.args(["-c", "shared_buffers=16MB", "-c", "max_connections=200"]);
    for setting in settings {
        command.args(["-c", setting]);
    }
    command.stdout(log.try_clone().expect("a descriptor")).stderr(log);
    spawn(command).unwrap_or_else(|why| panic!("postgres: {why}"))
}
