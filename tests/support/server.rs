//! A real memcached for one test: on a port of its own, gone with the test.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use crate::launch::as_nobody;
pub use crate::memcached_text::MemcachedText;
use crate::process::{Program, Server, ServerProcess};
use crate::wire::lock;

/// A running memcached: see [`ServerProcess`].
#[derive(Debug)]
pub struct Memcached {
    process: ServerProcess,
    /// Further arguments of the next start.
    more: Arguments,
}

type Arguments = std::sync::Arc<Mutex<Vec<String>>>;

#[derive(Debug)]
struct Settings {
    args: Vec<String>,
    more: Arguments,
}

impl Program for Settings {
    fn command(&self, port: u16) -> Command {
        let mut command = Command::new(program());
        command.args(["-U", "0", "-l", "127.0.0.1", "-p", &port.to_string()]).args(&self.args);
        command.args(lock(&self.more).iter());
        // memcached refuses to run as root. Not `-u nobody`: a process that changes its own user loses
        // the signal that is to kill it with its parent.
        as_nobody(&mut command);
        command
    }

    fn answers(&self, port: u16, pid: u32) -> bool {
        let plain = MemcachedText::try_connect(&format!("127.0.0.1:{port}"));
        let stats = plain.and_then(|mut plain| plain.stats_reply("stats"));
        stats.is_ok_and(|stats| stats.get("pid") == Some(&pid.to_string()))
    }
}

impl Server for Memcached {
    fn process(&self) -> &ServerProcess {
        &self.process
    }

    fn url_at(&self, address: &str) -> String {
        format!("memcached://{address}")
    }
}

impl Deref for Memcached {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}

impl Memcached {
    /// Starts a server with its defaults.
    pub fn start() -> Memcached {
        Memcached::with_args(&[])
    }

    /// Starts a server with further arguments, such as `&["-C"]`. Returns once it answers.
    pub fn with_args(args: &[&str]) -> Memcached {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let more = Arguments::default();
        let settings = Settings { args, more: Arguments::clone(&more) };
        Memcached { process: ServerProcess::start(settings), more }
    }

    /// See [`Server::url`].
    pub fn url(&self) -> String {
        Server::url(self)
    }

    /// [`ServerProcess::restart`] with further arguments, this time.
    pub fn restart_with(&self, more: &[&str]) {
        *lock(&self.more) = more.iter().map(ToString::to_string).collect();
        self.process.restart();
        lock(&self.more).clear();
    }

    /// A new plain connection to this server.
    pub fn plain(&self) -> MemcachedText {
        MemcachedText::connect(&self.address())
    }

    /// See [`MemcachedText::commands`].
    pub fn commands(&self) -> u64 {
        self.plain().commands()
    }

    /// How many commands more it takes to get a lock than on an old server: one from 1.6.24 on,
    /// which gives cas ids out of order.
    pub fn stamps(&self) -> u64 {
        u64::from(self.release() >= vec![1, 6, 24])
    }

    /// The numbers of its release, such as 1, 6, 45.
    pub fn release(&self) -> Vec<u64> {
        let version = self.plain().stats()["version"].clone();
        version.split(['.', '-', '_']).map_while(|part| part.parse().ok()).collect()
    }
}

/// The `memcached` that is found first.
pub fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/bin")])
        .map(|folder| folder.join("memcached"))
        .find(|file| file.is_file())
        .expect("no memcached on PATH or in /usr/bin: install memcached")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{ReservedPort, START_LIMIT, poll_until};

    #[test]
    fn a_killed_server_refuses_and_its_port_goes_to_nobody_else() {
        let server = Memcached::start();
        let mut before = server.plain();
        server.kill();
        assert!(MemcachedText::try_connect(&server.address()).is_err());
        assert!(before.try_command("version").is_err());
        let others: Vec<_> = (0..20).map(|_| ReservedPort::any()).collect();
        assert!(others.iter().all(|other| other.number() != server.port()));
        server.restart();
        assert!(server.plain().command("version").starts_with("VERSION "));
    }

    #[test]
    fn further_arguments_reach_the_server() {
        let server = Memcached::with_args(&["-C", "-m", "17"]);
        let settings = server.plain().stats_of("settings");
        assert_eq!(settings["cas_enabled"], "no");
        assert_eq!(settings["maxbytes"], (17 << 20).to_string());
        server.restart_with(&["-m", "18"]);
        assert_eq!(server.plain().stats_of("settings")["maxbytes"], (18 << 20).to_string());
    }

    #[test]
    #[should_panic(expected = "did not come up")]
    fn a_server_that_cannot_start_says_why() {
        let _ = Memcached::with_args(&["--no-such-option"]);
    }

    #[test]
    fn the_server_dies_with_the_test_process() {
        const CHILD: &str = "MEMLOCK_SUPPORT_DIES_SUDDENLY";
        if std::env::var_os(CHILD).is_some() {
            let server = Memcached::start();
            println!("\naddress={}", server.address());
            // SAFETY: raise has no preconditions. No destructor runs: as if the test had crashed.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        let itself = std::env::current_exe().expect("a test knows its own program");
        let name = "server::tests::the_server_dies_with_the_test_process";
        let died =
            Command::new(itself).args(["--exact", name, "--nocapture"]).env(CHILD, "1").output();
        let said =
            String::from_utf8_lossy(&died.expect("the test runs itself").stdout).into_owned();
        let address = said.lines().find_map(|line| line.strip_prefix("address="));
        let address = address.unwrap_or_else(|| panic!("the dying test gave no address: {said}"));
        let gone =
            poll_until(START_LIMIT, || MemcachedText::try_connect(address).is_err().then_some(()));
        assert!(gone.is_some(), "memcached on {address} outlived its test");
    }
}
