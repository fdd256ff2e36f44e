//! Servers that quote what they were sent: no message, no log record and no representation shows it.

use log::LevelFilter;
use memlock_core::ErrorKind;
use memlock_tests::client::{LEASE, connect};
use memlock_tests::listener::Listener;
use memlock_tests::quoting::Quoting;

/// What a server says around its quotation.
const WORDS: &str = "no good";
/// In most passwords of these tests.
const SECRET: &str = "hunter2";

/// As it may stand in a URL.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// All that is shown when the server quotes this.
fn shown(quoting: Quoting, login: &str, quotation: &str) -> String {
    let server = quoting.start(quotation);
    let client = connect(&quoting.url(&server, login));
    let mut shown = format!("{client:?}");
    let refused = client.mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    assert_ne!(refused.kind(), ErrorKind::Internal, "{refused}");
    shown += &format!("{refused} {refused:?}");
    let admin = client.admin(0).err();
    let admin = admin.or_else(|| client.admin(0).ok()?.round_trip().err()).unwrap();
    shown + &format!("{admin} {admin:?}")
}

#[test]
fn a_password_that_a_server_quotes_is_never_shown() {
    let log = Listener::at(LevelFilter::Trace);
    for password in [
        SECRET,
        "hunter2 and what is behind it, which some servers cut",
        "hunter2\"\\%25",
        "a b\n\u{1}hunter2\u{e4}",
        // Each letter is in the words of other texts, too.
        "e",
        "no!",
        "'",
    ] {
        let written = [
            password.to_owned(),
            password.escape_debug().to_string(),
            password.bytes().map(|byte| std::ascii::escape_default(byte).to_string()).collect(),
            encoded(password),
            password.to_ascii_uppercase(),
            password.chars().take(30).collect(),
        ];
        for quotation in written.iter().filter(|text| !text.contains('\n')) {
            for quoting in Quoting::ALL {
                let shown = shown(quoting, &format!("app:{}", encoded(password)), quotation);
                assert!(!shown.contains(WORDS), "{quoting:?} {quotation:?}: {shown}");
                assert!(!shown.to_ascii_lowercase().contains(SECRET), "{quoting:?}: {shown}");
            }
        }
    }
    let heard = log.heard();
    assert!(!heard.is_empty());
    let tells = |record: &&String| record.to_ascii_lowercase().contains(SECRET);
    assert_eq!(heard.iter().find(tells), None);
}

/// Otherwise nobody knows what to mend.
#[test]
fn other_words_of_a_server_are_shown() {
    for password in [SECRET, "e", "d", "good!"] {
        for quoting in Quoting::ALL {
            let shown = shown(quoting, &format!("app:{}", encoded(password)), "nothing");
            assert_eq!(shown.contains(WORDS), quoting != Quoting::RedisUnknown, "{shown}");
        }
    }
}

#[test]
fn a_user_without_a_password_is_not_shown_either() {
    for quoting in [
        Quoting::Postgresql,
        Quoting::PostgresqlAtOnce,
        Quoting::MySqlGreeting,
        Quoting::MySqlLogin,
    ] {
        for login in [SECRET, "hunter2:"] {
            let shown = shown(quoting, login, SECRET);
            assert!(!shown.contains(SECRET), "{quoting:?}: {shown}");
        }
        let beside = shown(quoting, "app:pw", "app");
        assert!(beside.contains("'app'"), "{quoting:?}: {beside}");
    }
}
