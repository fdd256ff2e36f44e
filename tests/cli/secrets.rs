//! A URL in the place of a name, and servers that quote the password: nothing is shown.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use memlock_tests::quoting::Quoting;
use memlock_tests::server::Memcached;

use crate::tool::{done, memlock, memlock_at};

#[test]
fn a_url_in_the_place_of_a_name_is_refused_and_not_shown() {
    let server = Memcached::start();
    for url in ["redis://app:hunter2@10.0.0.7", "redis://hunter2@h", "URL=mysql://a:hunter2@h/d"] {
        for args in [
            &["run", url, "true"][..],
            &["run", "-n", "-s", "3", url, "true"],
            &["show", url],
            &["show", "--json", url],
            &["release", "-fy", url],
            &["release", "-fys", url],
            &["release", "-fys", "s", "--token", url],
            &["resize", url, "3"],
            &["list", url, "set-up"],
            &["list", url, "ids"],
            &["ls", url],
            &["run", "m"],
            &["run", "m", url],
            &[url, "run", "m", "true"],
        ] {
            let said = done(memlock(&server, &[&["-vv"], args].concat()));
            assert!(said.code != Some(0) && !said.err.is_empty(), "{args:?}: {said:?}");
            let all = format!("{}{}", said.out, said.err);
            assert!(!all.contains("hunter2"), "{args:?}: {said:?}");
        }
        done(memlock(&server, &["run", url, "true"])).ended(64).complains("--url");
    }
    done(memlock(&server, &["run", "http://user@host/page", "true"])).ended(0);
    done(memlock(&server, &["run", "redis://web1:6379/0", "true"])).ended(0);
    done(memlock(&server, &["ls"])).ended(0).quietly().printed("");
}

#[test]
fn a_password_that_a_server_quotes_is_not_printed() {
    for quoting in Quoting::ALL {
        let server = quoting.start("hunter2");
        let url = quoting.url(&server, "app:hunter2");
        for args in [
            &["run", "-vv", "-n", "m", "true"][..],
            &["doctor", "-vv"],
            &["doctor", "--json"],
            &["ls", "-vv"],
            &["show", "-vv", "m"],
            &["list", "-vv", "l", "set-up"],
            &["release", "-vv", "-fy", "m"],
        ] {
            let said = done(memlock_at(&url, args));
            assert!(said.code != Some(0), "{quoting:?} {args:?}: {said:?}");
            let all = format!("{}{}", said.out, said.err);
            assert!(!all.contains("hunter2"), "{quoting:?} {args:?}: {said:?}");
            assert!(all.contains("127.0.0.1"), "{quoting:?} {args:?}: {said:?}");
        }
    }
}

#[test]
fn a_password_of_the_environment_or_a_file_is_not_printed_either() {
    let folder = std::env::temp_dir().join(format!("memlock-secrets-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        path
    };
    let pgpass = write("pgpass", "*:*:*:app:hunter2\n");
    write(".my.cnf", "[client]\nuser=app\npassword=hunter2\n");
    for (variable, value, quoting) in [
        ("REDISCLI_AUTH", OsStr::new("hunter2"), Quoting::RedisOwnWords),
        ("PGPASSWORD", OsStr::new("hunter2"), Quoting::Postgresql),
        ("PGPASSFILE", pgpass.as_os_str(), Quoting::Postgresql),
        ("MYSQL_PWD", OsStr::new("hunter2"), Quoting::MySqlLogin),
        ("HOME", folder.as_os_str(), Quoting::MySqlLogin),
    ] {
        let server = quoting.start("hunter2");
        let mut command =
            memlock_at(&quoting.url(&server, "app"), &["run", "-vv", "-n", "m", "true"]);
        command.env("HOME", "/").env(variable, value);
        let said = done(command).complains("quotes the login");
        assert!(!said.err.contains("hunter2"), "{variable}: {said:?}");
        let names_user = said.err.contains("the user \"app\"");
        assert_eq!(names_user, quoting == Quoting::Postgresql, "{said:?}");
    }
    fs::remove_dir_all(&folder).unwrap();
}
