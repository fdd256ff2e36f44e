//! A real Redis, which all tests of a run share under prefixes of their own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use memlock_tests::launch::{ReservedPort, START_LIMIT, end, poll_until, spawn};

use super::{Instance, Store};

/// With its defaults, and without persistence.
pub(crate) const REDIS: Store = Store {
    place: |unique| {
        static SERVER: OnceLock<Redis> = OnceLock::new();
        Instance::shared(SERVER.get_or_init(Redis::start).url(), unique)
    },
    shared_between_processes: true,
    shortest_lease: Duration::from_secs(1),
    // Semaphores note ends in whole seconds.
    slack: Duration::from_millis(2100),
    shown: "on Redis at 127.0.0.1:",
};

/// A running redis-server, which the kernel ends with this process.
struct Redis {
    port: ReservedPort,
    child: Child,
    directory: PathBuf,
}

impl Redis {
    fn start() -> Redis {
        let port = ReservedPort::any();
        let name = format!("memlock-redis-{}-{}", std::process::id(), port.number());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.number().to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.arg("--dir").arg(&directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn(command).unwrap_or_else(|why| panic!("redis-server: {why}"));
        let server = Redis { port, child, directory };
        let address = format!("127.0.0.1:{}", server.port.number());
        let answers = || std::net::TcpStream::connect(&address).ok();
        assert!(poll_until(START_LIMIT, answers).is_some(), "redis-server does not answer");
        server
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port.number())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        end(&mut self.child);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
