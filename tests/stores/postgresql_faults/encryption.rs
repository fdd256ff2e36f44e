//! TLS, in the ways that `sslmode` has.

use std::fs;
use std::path::Path;
use std::process::Command;

use memlock_core::{ErrorKind, Release};
use memlock_tests::postgresql::{Postgresql, as_nobody};
use memlock_tests::process::Server;

use crate::{LEASE, connect, with};

/// Makes a certificate for the name `localhost`.
fn certify(directory: &Path) {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.arg("-keyout").arg(directory.join("server.key"));
    openssl.arg("-out").arg(directory.join("server.crt"));
    as_nobody(&mut openssl);
    let made = openssl.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn connections_are_encrypted_as_the_url_says() {
    let server = Postgresql::start();
    let plain = with(&server, "sslmode=require");
    let error = connect(&plain).mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("sslmode"), "{error}");
    let data = server.files().join("data");
    certify(&data);
    let certificate = data.join("server.crt");
    fs::copy(&certificate, server.files().join("root.crt")).unwrap();
    server.sql("ALTER SYSTEM SET ssl = on");
    server.stop();
    server.restart();
    let root = server.files().join("root.crt");
    let root = format!("sslrootcert={}", root.display());
    let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
        WHERE ssl AND application_name = 'memlock'";
    let by_address = server.url();
    let by_name = by_address.replace("127.0.0.1", "localhost");
    for (url, parameters, is_encrypted) in [
        (&by_address, "sslmode=disable".to_owned(), false),
        (&by_address, "sslmode=prefer".to_owned(), true),
        (&by_address, "sslmode=require".to_owned(), true),
        (&by_address, format!("sslmode=verify-ca&{root}"), true),
        (&by_name, format!("sslmode=verify-full&{root}"), true),
    ] {
        let client = connect(&format!("{url}?{parameters}"));
        let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
        assert_eq!(server.sql(encrypted) == "1", is_encrypted, "{parameters}");
        let mut list = client.distinct_list(&parameters).unwrap();
        let _ = list.set_up(LEASE).unwrap();
        // Several records of TLS.
        let keys: Vec<String> = (0..3000).map(|number| format!("key {number}")).collect();
        assert_eq!(list.insert_many(&keys).unwrap().unwrap().len(), 3000);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
    for (url, parameters) in [
        // Another name than that of the certificate, and an authority that is not known.
        (&by_address, format!("sslmode=verify-full&{root}")),
        (&by_name, "sslmode=verify-full".to_owned()),
        (&by_name, "sslmode=verify-ca".to_owned()),
    ] {
        let client = connect(&format!("{url}?{parameters}"));
        let error = client.mutex("m", LEASE).unwrap().try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{parameters}: {error}");
        assert!(error.to_string().contains("TLS"), "{error}");
    }
    server.sql("ALTER SYSTEM SET ssl = off");
}
