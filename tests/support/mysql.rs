//! Real MariaDB servers.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::launch::{as_nobody, give, number, run};
use crate::process::{Program, Server, ServerProcess};
use crate::stranger::Stranger;

/// The database of the tests.
pub const DATABASE: &str = "locks";
/// A user with all rights on it.
pub const USER: &str = "memlock";
/// The user's password.
pub const PASSWORD: &str = "pass-word";

/// A MariaDB server on a port of 127.0.0.1 and a Unix socket, as a user without rights.
#[derive(Debug)]
pub struct MariaDb {
    process: ServerProcess,
    directory: PathBuf,
    /// The parameters of its URLs.
    parameters: &'static str,
}

impl MariaDb {
    /// With its defaults, and these options.
    pub fn start(args: &[&str]) -> MariaDb {
        let settings = Settings::new(args);
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(template().data()).arg(&settings.directory);
        run(copy);
        let directory = settings.directory.clone();
        MariaDb { process: ServerProcess::start(settings), directory, parameters: "" }
    }

    /// As [`MariaDb::start`], but does not wait for the disk: for tests that do not kill it.
    pub fn start_fast() -> MariaDb {
        MariaDb::start(&["--innodb-flush-log-at-trx-commit=0"])
    }

    /// With a question mark and parameters behind its URLs.
    pub fn with_parameters(self, parameters: &'static str) -> MariaDb {
        MariaDb { parameters, ..self }
    }

    /// The path of its Unix socket.
    pub fn socket(&self) -> PathBuf {
        socket_in(&self.directory)
    }

    /// The URL of its Unix socket.
    pub fn url_of_socket(&self) -> String {
        format!("mysql://{USER}:{PASSWORD}@/{DATABASE}?socket={}", self.socket().display())
    }

    /// Runs statements as the administrator. Returns their output.
    pub fn sql(&self, statements: &str) -> String {
        self.try_sql(statements).unwrap_or_else(|why| panic!("{statements}: {why}"))
    }

    /// As [`MariaDb::sql`], which may fail.
    pub fn try_sql(&self, statements: &str) -> Result<String, String> {
        let mut command = client(&self.directory);
        let output = command.args(["--execute", statements]).output().expect("the mariadb program");
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(words(&output.stdout)) } else { Err(words(&output.stderr)) }
    }

    /// Another program there, as the administrator, in this database.
    pub fn stranger(&self, database: &str) -> Stranger {
        let mut program = client(&self.directory);
        program.arg(database);
        Stranger::at(program, "SELECT 'done';")
    }
}

impl Server for MariaDb {
    fn process(&self) -> &ServerProcess {
        &self.process
    }

    fn url_at(&self, address: &str) -> String {
        format!("mysql://{USER}:{PASSWORD}@{address}/{DATABASE}{}", self.parameters)
    }
}

#[derive(Debug)]
struct Settings {
    directory: PathBuf,
    args: Vec<String>,
    cleaner: Child,
}

impl Settings {
    /// With an empty directory.
    fn new(args: &[&str]) -> Settings {
        let name = format!("memlock-mysql-{}-{}", std::process::id(), number());
        let directory = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).expect("a directory for the server");
        give(&directory);
        let args = args.iter().map(ToString::to_string).collect();
        let cleaner = clean_up_after(&directory);
        Settings { directory, args, cleaner }
    }

    /// Writes the system tables, the database and its user.
    fn install(&self) {
        let mut command = self.program("mariadb-install-db");
        command.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
        command.arg("--skip-name-resolve");
        run(command);
        let statements = self.directory.join("statements");
        // A line is a statement.
        let text = format!(
            "FLUSH PRIVILEGES;\nCREATE DATABASE {DATABASE};\n\
             CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON {DATABASE}.* TO {USER}@'%';\n"
        );
        fs::write(&statements, text).expect("a file of the server's");
        let mut command = self.program("mariadbd");
        command.arg("--bootstrap").stdin(File::open(&statements).expect("the file"));
        run(command);
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        // Servers are not in the PATH of ordinary users.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin")).current_dir(&self.directory);
        // A server that starts removes the temporary tables of others.
        command.env("TMPDIR", &self.directory);
        command.arg("--no-defaults");
        command.arg(format!("--datadir={}", self.data().display()));
        // Less to copy.
        command.arg("--innodb-log-file-size=8M");
        as_nobody(&mut command);
        command
    }
}

impl Program for Settings {
    fn command(&self, port: u16) -> Command {
        let mut command = self.program("mariadbd");
        command.arg(format!("--port={port}")).arg("--bind-address=127.0.0.1");
        command.arg(format!("--socket={}", socket_in(&self.directory).display()));
        command.arg(format!("--pid-file={}", self.directory.join("pid").display()));
        command.arg("--skip-name-resolve").args(&self.args);
        command
    }

    fn answers(&self, _port: u16, _pid: u32) -> bool {
        let mut ask = client(&self.directory);
        ask.args(["--execute", "SELECT 1"]).stderr(Stdio::null());
        ask.output().is_ok_and(|output| output.status.success())
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        drop(self.cleaner.stdin.take());
        let _ = self.cleaner.wait();
    }
}

/// Files of a server, which are made once in this process, and copied for each server.
fn template() -> &'static Settings {
    static TEMPLATE: OnceLock<Settings> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let settings = Settings::new(&[]);
        settings.install();
        settings
    })
}

fn socket_in(directory: &Path) -> PathBuf {
    directory.join("socket")
}

fn client(directory: &Path) -> Command {
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "--batch", "--skip-column-names", "--unbuffered"]);
    command.arg("--user=root").arg(format!("--socket={}", socket_in(directory).display()));
    command
}

/// A process that removes the directory when this process ends, or closes its input: a server that
/// all tests share is not dropped.
fn clean_up_after(directory: &Path) -> Child {
    let mut command = Command::new("sh");
    // The server is killed at about the same time, and may create files until then.
    command.args(["-c", "read _; until rm -rf \"$0\"; do sleep 0.1; done"]).arg(directory);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().unwrap_or_else(|why| panic!("sh: {why}"))
}
