//! Locks in a MySQL table: what commands say of it.

use std::fs;

use memlock_tests::mysql::{MariaDb, PASSWORD};
use memlock_tests::process::Server;

use crate::run::Folder;
use crate::tool::{Said, done, memlock_at};

pub(crate) fn run(url: &str, args: &[&str]) -> Said {
    done(memlock_at(url, args))
}

/// Commands that look create nothing in a database, and the first lock creates what it needs.
/// Returns what the doctor says then.
pub(crate) fn looking_creates_nothing(
    url: &str,
    missing: &str,
    is_untouched: impl Fn() -> bool,
) -> Said {
    for (args, says) in [(&["ls"][..], missing), (&["show", "x"], ""), (&["doctor"], "")] {
        run(url, args).ended(0).complains(says);
    }
    assert!(is_untouched());
    for (inner, says) in [(&["show", "x"][..], "held"), (&["ls"], "x")] {
        let outer = ["run", "x", "--", env!("CARGO_BIN_EXE_memlock")];
        let said = run(url, &[&outer, inner].concat()).ended(0);
        assert!(said.out.contains(says), "{said:?}");
    }
    run(url, &["doctor"]).ended(0)
}

/// All on one server, one after the other.
#[test]
fn commands_say_what_a_table_of_locks_is_and_can() {
    let server = MariaDb::start_fast();
    let is_untouched = || server.sql("SHOW TABLES FROM locks").is_empty();
    let said = looking_creates_nothing(&server.url(), "the first lock creates it", is_untouched);
    for words in ["MariaDB", "takes writes", "innodb_flush_log_at_trx_commit=0", "wsrep_on is off"]
    {
        assert!(said.out.contains(words), "{words}: {said:?}");
    }
    run(&server.url_of_socket(), &["run", "x", "true"]).ended(0);
    passwords_come_from_where_the_servers_own_programs_find_them(&server);
    server.sql("ALTER TABLE locks.memlock_items DROP PRIMARY KEY");
    let said = run(&server.url(), &["doctor"]);
    assert!(said.code != Some(0) && said.out.contains("primary key"), "{said:?}");
    server.sql("ALTER TABLE locks.memlock_items ADD PRIMARY KEY (name)");
    run(&server.url(), &["doctor"]).ended(0);
    server.sql("SET GLOBAL read_only = 1");
    let said = run(&server.url(), &["doctor"]);
    assert!(said.code != Some(0) && said.out.contains("is read-only"), "{said:?}");
}

fn passwords_come_from_where_the_servers_own_programs_find_them(server: &MariaDb) {
    let without = server.url().replace(&format!(":{PASSWORD}"), "");
    let home = Folder::new("mysql-home");
    let run = |variable: Option<&str>| {
        let mut command = memlock_at(&without, &["run", "x", "true"]);
        command.env("HOME", &home.0).env_remove("MYSQL_PWD");
        if let Some(password) = variable {
            command.env("MYSQL_PWD", password);
        }
        done(command)
    };
    run(None).ended(78).complains("password");
    assert_eq!(run(Some(PASSWORD)).code, Some(0));
    fs::write(home.0.join(".my.cnf"), format!("[client]\npassword=\"{PASSWORD}\"\n")).unwrap();
    assert_eq!(run(None).code, Some(0));
    assert_eq!(run(Some("another")).code, Some(78), "the variable comes first");
}
