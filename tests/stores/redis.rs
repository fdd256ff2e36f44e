//! A real Redis, which all tests of a run share under prefixes of their own.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use memlock_tests::process::{Program, Server, ServerProcess};

use super::{Instance, Store};

/// With its defaults, and without persistence.
pub(crate) const REDIS: Store = Store {
    place: |unique| {
        static SERVER: OnceLock<Redis> = OnceLock::new();
        Instance::shared(SERVER.get_or_init(|| Redis::start(&[])).url(), unique)
    },
    shared_between_processes: true,
    shortest_lease: Duration::from_secs(1),
    // Semaphores note ends in whole seconds.
    slack: Duration::from_millis(2100),
    shown: "on Redis at 127.0.0.1:",
    server: Some(|| Box::new(Redis::start(&[]))),
    keeps_when_killed: false,
};

/// That writes each change to its disk before it replies.
pub(crate) const THAT_PERSISTS: Store = Store {
    server: Some(|| Box::new(Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]))),
    keeps_when_killed: true,
    ..REDIS
};

/// A running redis-server.
#[derive(Debug)]
pub(crate) struct Redis(ServerProcess);

#[derive(Debug)]
struct Settings {
    directory: PathBuf,
    args: Vec<String>,
}

impl Redis {
    /// Starts a server with further arguments.
    pub(crate) fn start(args: &[&str]) -> Redis {
        let name = format!("memlock-redis-{}-{:p}", std::process::id(), &raw const args);
        let directory = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).unwrap();
        let args = args.iter().map(ToString::to_string).collect();
        Redis(ServerProcess::start(Settings { directory, args }))
    }
}

impl Server for Redis {
    fn process(&self) -> &ServerProcess {
        &self.0
    }

    fn url_at(&self, address: &str) -> String {
        format!("redis://{address}")
    }
}

impl Program for Settings {
    fn command(&self, port: u16) -> Command {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.arg("--dir").arg(&self.directory).args(&self.args);
        command
    }

    fn answers(&self, port: u16, pid: u32) -> bool {
        let address = format!("127.0.0.1:{port}");
        // While it loads its data, it replies to INFO only.
        ask(&address, "PING").is_ok_and(|reply| reply == "+PONG\r\n")
            && ask(&address, "INFO server")
                .is_ok_and(|reply| reply.contains(&format!("process_id:{pid}\r\n")))
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Sends one command in plain text, and returns what the server replies at once.
pub(crate) fn ask(address: &str, command: &str) -> std::io::Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut reply = vec![0; 64 * 1024];
    let length = stream.read(&mut reply)?;
    reply.truncate(length);
    String::from_utf8(reply).map_err(std::io::Error::other)
}
