//! Locks in a MySQL table: what commands say of it.

use std::fs;

use memlock_tests::mysql::{MariaDb, PASSWORD};
use memlock_tests::process::Server;

use crate::tool::{Said, done, memlock_at};

fn run(url: &str, args: &[&str]) -> Said {
    done(memlock_at(url, args))
}

#[test]
fn commands_that_look_create_nothing_and_the_first_lock_does() {
    let server = MariaDb::start_fast();
    let url = server.url();
    for args in [&["ls"][..], &["show", "x"], &["doctor"]] {
        let said = run(&url, args);
        assert_eq!(said.code, Some(0), "{args:?}: {said:?}");
    }
    assert!(run(&url, &["ls"]).err.contains("the first lock creates it"));
    assert_eq!(server.sql("SHOW TABLES FROM locks"), "");
    let inner = ["run", "x", "--", env!("CARGO_BIN_EXE_memlock"), "show", "x"];
    let said = run(&url, &inner);
    assert!(said.code == Some(0) && said.out.contains("held"), "{said:?}");
    let inner = ["run", "x", "--", env!("CARGO_BIN_EXE_memlock"), "ls"];
    assert!(run(&url, &inner).out.contains('x'));
    let said = run(&url, &["doctor"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for words in ["MariaDB", "takes writes", "innodb_flush_log_at_trx_commit=0", "wsrep_on is off"]
    {
        assert!(said.out.contains(words), "{words}: {said:?}");
    }
    let said = run(&server.url_of_socket(), &["run", "x", "true"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    server.sql("SET GLOBAL read_only = 1");
    let said = run(&url, &["doctor"]);
    assert!(said.code != Some(0) && said.out.contains("is read-only"), "{said:?}");
}

#[test]
fn passwords_come_from_where_the_servers_own_programs_find_them() {
    let server = MariaDb::start_fast();
    let without = server.url().replace(&format!(":{PASSWORD}"), "");
    let home = std::env::temp_dir().join(format!("memlock-mysql-home-{}", std::process::id()));
    fs::create_dir(&home).unwrap();
    let run = |variable: Option<&str>| {
        let mut command = memlock_at(&without, &["run", "x", "true"]);
        command.env("HOME", &home).env_remove("MYSQL_PWD");
        if let Some(password) = variable {
            command.env("MYSQL_PWD", password);
        }
        done(command)
    };
    let said = run(None);
    assert!(said.code == Some(78) && said.err.contains("password"), "{said:?}");
    let said = run(Some(PASSWORD));
    assert_eq!(said.code, Some(0), "{said:?}");
    fs::write(home.join(".my.cnf"), format!("[client]\npassword=\"{PASSWORD}\"\n")).unwrap();
    let said = run(None);
    assert_eq!(said.code, Some(0), "{said:?}");
    let said = run(Some("another"));
    assert_eq!(said.code, Some(78), "the variable comes first: {said:?}");
    fs::remove_dir_all(home).unwrap();
}
