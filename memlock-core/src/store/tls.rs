//! TLS to a server: the certificates that are trusted, and the client's own.

use std::fmt;
use std::fs::File;
use std::io::{Error as IoError, ErrorKind as IoKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error as TlsError,
    RootCertStore, SignatureScheme, StreamOwned,
};

use super::send::send;
use super::url::Url;
use crate::clock::{Clock, Moment};
use crate::descriptor::Descriptor;
use crate::environment::shown_path;
use crate::error::{Error, Result};

/// How servers are authenticated, and this client to them.
#[derive(Clone)]
pub(in crate::store) struct Tls(Arc<ClientConfig>);

/// Which servers are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Trust {
    /// Those with a certificate of an authority, for the name that they are dialled by.
    Name,
    /// Those with a certificate of an authority, for any name.
    #[allow(dead_code, reason = "not every store has it")]
    Authority,
    /// All of them: the connection is encrypted, and whoever is in between can read it.
    #[allow(dead_code, reason = "not every store has it")]
    Anybody,
}

/// The URL's parameters for the files of the authorities, of the client's certificate and of its
/// key.
pub(in crate::store) type Parameters = [&'static str; 3];

/// The files that the URL names.
pub(in crate::store) struct Files {
    parameters: Parameters,
    /// The authorities. Without it, the host's are trusted.
    pub(in crate::store) ca: Option<String>,
    /// The client's certificate and key.
    own: Option<(String, String)>,
}

impl Files {
    pub(in crate::store) fn take(url: &mut Url, parameters: Parameters) -> Result<Files> {
        let [ca, certificate, key] = parameters;
        let ca = url.take(ca);
        let own = match (url.take(certificate), url.take(key)) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => {
                return Err(Error::config(format!(
                    "The URL has only one of {certificate} and {key}: a client's certificate needs \
                     both."
                )));
            }
        };
        Ok(Files { parameters, ca, own })
    }
}

/// Without the client's key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Takes the parameters `tls_ca`, `tls_cert` and `tls_key` from the URL, and reads the files.
    pub(in crate::store) fn take(url: &mut Url) -> Result<Tls> {
        Tls::new(Trust::Name, &Files::take(url, ["tls_ca", "tls_cert", "tls_key"])?)
    }

    /// Reads the files.
    pub(in crate::store) fn new(trust: Trust, files: &Files) -> Result<Tls> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::config(format!("TLS cannot be set up: {error}.")))?;
        let builder = match trust {
            Trust::Name => builder.with_root_certificates(roots(files)?),
            Trust::Authority | Trust::Anybody => {
                let authority = match trust {
                    Trust::Anybody => None,
                    _ => Some(authority(files, &provider)?),
                };
                let verifier = Lax { authority, provider };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
        };
        let config = match &files.own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let [_, of_certificate, of_key] = files.parameters;
                let certificate = Pem { parameter: of_certificate, path: certificate };
                let certificates = certificate.certificates(OWN)?;
                let key = Pem { parameter: of_key, path: key }.key()?;
                builder.with_client_auth_cert(certificates, key).map_err(|error| {
                    let why = match error {
                        TlsError::InconsistentKeys(_) => "do not belong together",
                        _ => "cannot be used",
                    };
                    Error::config(format!(
                        "{of_certificate} and {of_key} of the URL {why}: {error}."
                    ))
                })?
            }
        };
        Ok(Tls(Arc::new(config)))
    }

    /// Performs the handshake. The timeouts of the socket are changed.
    pub(in crate::store) fn connect(
        &self,
        host: &str,
        socket: Descriptor<TcpStream>,
        deadline: Moment,
        clock: &dyn Clock,
    ) -> std::io::Result<Encrypted> {
        let name = ServerName::try_from(host.to_owned()).map_err(IoError::other)?;
        let mut session =
            ClientConnection::new(Arc::clone(&self.0), name).map_err(IoError::other)?;
        let mut socket = Plain(socket);
        while session.is_handshaking() {
            let left = deadline.since(clock.now());
            if left.is_zero() {
                return Err(IoKind::TimedOut.into());
            }
            socket.0.set_read_timeout(Some(left))?;
            socket.0.set_write_timeout(Some(left))?;
            while session.wants_write() {
                if let Some(0) = unless_interrupted(session.write_tls(&mut socket))? {
                    return Err(IoKind::WriteZero.into());
                }
            }
            if session.is_handshaking() && session.wants_read() {
                match unless_interrupted(session.read_tls(&mut socket))? {
                    Some(0) => return Err(IoKind::UnexpectedEof.into()),
                    // The time limit is computed anew.
                    None => continue,
                    Some(_) => {}
                }
                let processed = session.process_new_packets();
                if let Err(error) = processed {
                    // The server is told why; whether it hears that does not matter.
                    let _ = session.write_tls(&mut socket);
                    return Err(IoError::other(error));
                }
            }
        }
        Ok(Encrypted(StreamOwned::new(session, socket)))
    }
}

/// What to do after a handshake that failed with this error.
pub(in crate::store) fn advice(error: &IoError, host: &str) -> String {
    let kind = if host.parse::<IpAddr>().is_ok() { "IP" } else { "DNS" };
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    match of_tls {
        Some(TlsError::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "Name the file of the authority that has signed its certificate in the URL. The server's own \
             certificate is only taken for that if it is self-signed."
                .to_owned()
        }
        // The library has a name for it in its text only.
        Some(other) if other.to_string().contains("CaUsedAsEndEntity") => format!(
            "Its certificate is one of an authority (CA:TRUE), as `openssl req -x509` makes them, and so is none of \
             a server. Make it with -addext basicConstraints=critical,CA:FALSE -addext subjectAltName={kind}:{host}, \
             or have an authority sign one for the server."
        ),
        _ => format!(
            "Is TLS on there, is {host} a name in its certificate, and its authority one that the URL or this \
             host trusts?"
        ),
    }
}

/// `None` if a signal handler has run.
fn unless_interrupted(moved: std::io::Result<usize>) -> std::io::Result<Option<usize>> {
    match moved {
        Err(error) if error.kind() == IoKind::Interrupted => Ok(None),
        Err(error) if error.kind() == IoKind::WouldBlock => Err(IoKind::TimedOut.into()),
        moved => moved.map(Some),
    }
}

/// Verifies less than the name of the server.
#[derive(Debug)]
struct Lax {
    /// `None`: nothing is verified.
    authority: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lax {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, TlsError> {
        let Some(authority) = &self.authority else { return Ok(ServerCertVerified::assertion()) };
        // The name is the last thing that is verified.
        match authority.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        ) {
            Err(TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn authority(files: &Files, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>> {
    let roots = Arc::new(roots(files)?);
    WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
        .build()
        .map_err(|error| Error::config(format!("TLS cannot be set up: {error}.")))
}

fn roots(files: &Files) -> Result<RootCertStore> {
    let parameter = files.parameters[0];
    let mut roots = RootCertStore::empty();
    let Some(path) = &files.ca else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(Error::config(format!(
                "This host has no certificate authorities by which the server could be verified: name a \
                 file of them with the parameter {parameter}, or install ca-certificates."
            )));
        }
        return Ok(roots);
    };
    let file = Pem { parameter, path };
    roots.add_parsable_certificates(file.certificates(AUTHORITIES)?);
    match roots.is_empty() {
        true => Err(file.unusable("none of its certificates can be read", AUTHORITIES)),
        false => Ok(roots),
    }
}

/// What the files should contain.
const AUTHORITIES: &str = "the certificates of authorities, or the server's self-signed one \
                           (-----BEGIN CERTIFICATE-----)";
const OWN: &str = "the client's certificate, and those between it and its authority's \
                   (-----BEGIN CERTIFICATE-----)";
const KEY: &str = "the key of the client's certificate (-----BEGIN PRIVATE KEY-----)";

/// The longest file that is read. That of a host's authorities has a quarter of a megabyte.
const LONGEST: u64 = 16 * 1024 * 1024;

/// A file that the URL names.
struct Pem<'a> {
    parameter: &'static str,
    path: &'a str,
}

impl Pem<'_> {
    fn certificates(&self, content: &str) -> Result<Vec<CertificateDer<'static>>> {
        let bytes = self.read(content)?;
        let found: std::result::Result<Vec<_>, PemError> =
            CertificateDer::pem_slice_iter(&bytes).collect();
        match found {
            Ok(found) if found.is_empty() => Err(self.without_item(&bytes, content)),
            Ok(found) => Ok(found),
            Err(error) => Err(self.malformed(&error, content)),
        }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>> {
        let bytes = self.read(KEY)?;
        PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
            PemError::NoItemsFound => self.without_item(&bytes, KEY),
            error => self.malformed(&error, KEY),
        })
    }

    fn read(&self, content: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.path)
            .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes))
            .map_err(|error| self.unusable(&format!("it cannot be read ({error})"), content))?;
        match bytes.len() as u64 > LONGEST {
            true => Err(self.unusable("it is too long", content)),
            false => Ok(bytes),
        }
    }

    /// The error of a file that has nothing of what it should contain.
    fn without_item(&self, bytes: &[u8], content: &str) -> Error {
        let has = |mark: &str| bytes.windows(mark.len()).any(|part| part == mark.as_bytes());
        let why = match content {
            _ if bytes.trim_ascii().is_empty() => "it is empty",
            // The first byte of a sequence.
            KEY if bytes.starts_with(b"\x30") => {
                "it may be in DER format, from which `openssl pkey -inform DER` converts it"
            }
            _ if bytes.starts_with(b"\x30") => {
                "it may be in DER format, from which `openssl x509 -inform DER` converts it"
            }
            KEY if has("ENCRYPTED PRIVATE KEY") => {
                "its key has a passphrase, which `openssl pkey` removes"
            }
            KEY if has("BEGIN CERTIFICATE") => "it has a certificate and no key",
            KEY => "it has no key in PEM format",
            _ if has("PRIVATE KEY") => "it has a key and no certificate",
            _ => "it has no certificate in PEM format",
        };
        self.unusable(why, content)
    }

    fn malformed(&self, error: &PemError, content: &str) -> Error {
        // The errors of these contain a part of the file: of a key.
        match error {
            PemError::MissingSectionEnd { .. } => self.unusable(
                "a section has no line that ends it; each of its lines needs a line break",
                content,
            ),
            PemError::IllegalSectionStart { .. } => self.unusable(
                "the line that begins a section is damaged, or has no line break",
                content,
            ),
            error => self.unusable(&error.to_string(), content),
        }
    }

    fn unusable(&self, why: &str, content: &str) -> Error {
        let (file, parameter) = (shown_path(self.path), self.parameter);
        Error::config(format!(
            "The file{file} of the parameter {parameter} is not usable: {why}. It should contain {content}."
        ))
    }
}

/// The socket below TLS.
struct Plain(Descriptor<TcpStream>);

impl Read for Plain {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        (&*self.0).read(buffer)
    }
}

impl Write for Plain {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        send(&*self.0, bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An encrypted connection.
pub(in crate::store) struct Encrypted(StreamOwned<ClientConnection, Plain>);

impl Encrypted {
    pub(in crate::store) fn socket(&self) -> &Descriptor<TcpStream> {
        &self.0.sock.0
    }

    /// Processes what the server has sent without being asked: for example, it may send keys for
    /// later sessions. `has_more`: whether something can be read without waiting. False if the
    /// connection was closed, or has data.
    pub(in crate::store) fn is_open_and_quiet(
        &mut self,
        has_more: impl Fn(&Descriptor<TcpStream>) -> Option<bool>,
    ) -> bool {
        let StreamOwned { conn, sock } = &mut self.0;
        loop {
            match has_more(&sock.0) {
                Some(true) => {}
                Some(false) => return true,
                None => return false,
            }
            if !conn.read_tls(sock).is_ok_and(|bytes| bytes > 0) {
                return false;
            }
            match conn.process_new_packets() {
                Ok(state) if state.plaintext_bytes_to_read() == 0 && !state.peer_has_closed() => {}
                _ => return false,
            }
        }
    }
}

impl Read for Encrypted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

/// A write of 0 bytes means that the buffer is full.
impl Write for Encrypted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.write(bytes)? {
            0 if !bytes.is_empty() => {
                self.0.flush()?;
                self.0.write(bytes)
            }
            written => Ok(written),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is removed at the end.
    struct Made(std::path::PathBuf);

    impl Made {
        fn new(name: &str, content: impl AsRef<[u8]>) -> Made {
            let name = format!("memlock-tls-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, content).unwrap();
            Made(path)
        }

        fn path(&self) -> &str {
            self.0.to_str().unwrap()
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn refused(parameters: &[(&str, &str)]) -> String {
        let text: Vec<String> =
            parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut url = Url::parse(&format!("rediss://h?{}", text.join("&"))).unwrap();
        let files = Files::take(&mut url, ["tls_ca", "tls_cert", "tls_key"]).unwrap();
        let error = Tls::new(Trust::Name, &files).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Config, "{error}");
        error.to_string()
    }

    #[test]
    fn a_file_without_what_it_should_contain_is_named_and_told_what_that_is() {
        const SECTION: &str = "-----BEGIN NAME-----\nMAA=\n-----END NAME-----\n";
        let certificate = Made::new("certificate", SECTION.replace("NAME", "CERTIFICATE"));
        let key = Made::new("key", SECTION.replace("NAME", "PRIVATE KEY"));
        let encrypted = Made::new("encrypted", SECTION.replace("NAME", "ENCRYPTED PRIVATE KEY"));
        let [empty, der, words] =
            [("empty", &b"\n"[..]), ("der", b"\x30\x82"), ("words", b"words")]
                .map(|(name, content)| Made::new(name, content));
        let directory = std::env::temp_dir();
        let long = Made::new("long", "");
        File::options().write(true).open(&long.0).unwrap().set_len(LONGEST + 1).unwrap();
        for (file, of_certificates, of_key) in [
            (empty.path(), "it is empty", "it is empty"),
            (der.path(), "openssl x509 -inform DER", "openssl pkey -inform DER"),
            (words.path(), "no certificate in PEM", "no key in PEM"),
            (key.path(), "has a key and no certificate", "cannot be used"),
            (encrypted.path(), "has a key and no certificate", "passphrase"),
            (
                certificate.path(),
                "none of its certificates can be read",
                "a certificate and no key",
            ),
            (directory.to_str().unwrap(), "cannot be read (Is a directory", "Is a directory"),
            (long.path(), "it is too long", "it is too long"),
            ("/dev/zero", "it is too long", "it is too long"),
            ("/nowhere/x.pem", "No such file", "No such file"),
        ] {
            let ca = refused(&[("tls_ca", file)]);
            let says = [
                file,
                "the parameter tls_ca ",
                of_certificates,
                "It should contain",
                "authorities",
            ];
            assert!(says.iter().all(|words| ca.contains(words)), "{ca}");
            let own = |own: &str, key: &str| {
                let files = Files {
                    parameters: ["tls_ca", "tls_cert", "tls_key"],
                    ca: None,
                    own: Some((own.to_owned(), key.to_owned())),
                };
                Tls::new(Trust::Anybody, &files).unwrap_err().to_string()
            };
            let said = own(certificate.path(), file);
            assert!(said.contains(of_key), "{said}");
            let names =
                file == key.path() || said.contains(file) && said.contains("BEGIN PRIVATE KEY");
            assert!(names, "{said}");
            if file != certificate.path() {
                let said = own(file, key.path());
                let says =
                    [file, "the parameter tls_cert ", of_certificates, "the client's certificate"];
                assert!(says.iter().all(|words| said.contains(words)), "{said}");
            }
        }
    }
}
