//! A certificate for servers with TLS.

use std::path::Path;
use std::process::Command;

use crate::launch::{as_nobody, run};

/// Makes a certificate for the name `localhost`, `server.crt` and `server.key` in this directory, as the
/// user that servers run as.
pub fn certify(directory: &Path) {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.arg("-keyout").arg(directory.join("server.key"));
    openssl.arg("-out").arg(directory.join("server.crt"));
    as_nobody(&mut openssl);
    run(openssl);
}
