//! TLS, in the ways that `sslmode` has.

use std::fs;

use memlock_core::{ErrorKind, Release};
use memlock_tests::certificate::certify;
use memlock_tests::launch::poll_until;
use memlock_tests::process::Server;
use memlock_tests::relay::{Fate, Relay};
use memlock_tests::{daemon, sigpipe, url};

use crate::{LEASE, PATIENCE, Place, alone, connect};

/// A server that falls silent in the handshake of TLS is not waited for a second time, without TLS.
fn does_not_answer_twice(address: &str, url_at: impl Fn(&str) -> String) {
    let relay = Relay::start(address);
    let mut bursts = 0;
    // The question for TLS is answered.
    relay.decide(move |_| {
        bursts += 1;
        if bursts == 1 { Fate::Pass } else { Fate::LoseRequest }
    });
    let timeouts = "sslmode=prefer&connect_timeout=500ms&io_timeout=500ms";
    let client = connect(&url::with(&url_at(&relay.address()), timeouts));
    let error = client.mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("while TLS was set up"), "{error}");
    assert_eq!(relay.bursts(), 2);
}

#[test]
fn connections_are_encrypted_as_the_url_says() {
    let server = alone();
    let place = Place::on(&server);
    let refused = |url: &str, parameters: &str, kind, says: &str| {
        let client = connect(&url::with(url, parameters));
        let error = client.mutex("m", LEASE).unwrap().try_lock().unwrap_err();
        assert_eq!(error.kind(), kind, "{parameters}: {error}");
        assert!(error.to_string().contains(says), "{parameters}: {error}");
    };
    let by_address = place.url();
    refused(&by_address, "sslmode=require", ErrorKind::Config, "sslmode");
    let data = server.files().join("data");
    certify(&data);
    fs::copy(data.join("server.crt"), server.files().join("root.crt")).unwrap();
    server.sql("ALTER SYSTEM SET ssl = on");
    server.sql("SELECT pg_reload_conf()");
    // It is on a moment later.
    place.until("FROM pg_settings WHERE name = 'ssl' AND setting = 'on'", "1");
    let root = format!("sslrootcert={}", server.files().join("root.crt").display());
    let by_name = by_address.replace("127.0.0.1", "localhost");
    for (url, parameters, count) in [
        (&by_address, "sslmode=disable".to_owned(), "0"),
        (&by_address, "sslmode=prefer".to_owned(), "1"),
        (&by_address, "sslmode=allow".to_owned(), "1"),
        (&by_address, "sslmode=require".to_owned(), "1"),
        (&by_address, format!("sslmode=verify-ca&{root}"), "1"),
        (&by_name, format!("sslmode=verify-full&{root}"), "1"),
    ] {
        // The sessions of the client before end a moment after it.
        place.until(&place.sessions(), "0");
        let client = connect(&url::with(url, &parameters));
        let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
        let encrypted = format!(
            "FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND usename = '{}'",
            place.name
        );
        assert_eq!(server.sql(&format!("SELECT count(*) {encrypted}")), count, "{parameters}");
        let mut list = client.distinct_list(&parameters).unwrap();
        let _ = list.set_up(LEASE).unwrap();
        // Several records of TLS.
        let keys: Vec<String> = (0..500).map(|number| format!("key {number:0100}")).collect();
        assert_eq!(list.insert_many(&keys).unwrap().unwrap().len(), keys.len());
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
    let address = server.process().address();
    does_not_answer_twice(&address, |other| by_address.replace(&address, other));
    sigpipe::is_not_raised_by_resets(&address, |other| {
        url::with(&by_address.replace(&address, other), "sslmode=require")
    });
    daemon::keeps_its_files_at_once(&url::with(&by_address, "sslmode=require"));
    daemon::keeps_its_files_after_a_pause(&url::with(&by_address, "sslmode=require"));
    // Another name than that of the certificate, and an authority that is not known.
    let other_name = format!("sslmode=verify-full&{root}");
    refused(&by_address, &other_name, ErrorKind::Unreachable, "TLS");
    for unknown in ["sslmode=verify-full", "sslmode=verify-ca"] {
        refused(&by_name, unknown, ErrorKind::Unreachable, "TLS");
    }
    // Lines of pg_hba.conf for connections of one kind only.
    let hba = data.join("pg_hba.conf");
    let all = fs::read_to_string(&hba).unwrap();
    for (line, parameters, instead) in [
        ("hostnossl", "sslmode=allow", "sslmode=disable"),
        ("hostssl", "sslmode=disable", "sslmode=require"),
    ] {
        let lines = format!("{line} all {0} all trust\nhost all {0} all reject\n{all}", place.name);
        fs::write(&hba, lines).unwrap();
        server.sql("SELECT pg_reload_conf()");
        let is_refused = || {
            let client = connect(&url::with(&by_address, parameters));
            client.mutex("m", LEASE).unwrap().try_lock().err()
        };
        let error = poll_until(PATIENCE, is_refused).unwrap();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(instead), "{parameters}: {error}");
        let mutex = connect(&url::with(&by_address, instead)).mutex("m", LEASE).unwrap();
        assert_eq!(mutex.lock().unwrap().unlock().unwrap(), Release::Released);
    }
    fs::write(&hba, all).unwrap();
    server.sql("ALTER SYSTEM RESET ssl");
    server.sql("SELECT pg_reload_conf()");
}
