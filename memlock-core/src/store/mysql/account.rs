//! The user and the password: of the URL, or as the `mysql` and `mariadb` programs find them.

use std::path::PathBuf;

use crate::store::url::Secret;

/// The environment variable that the servers' own programs take a password from.
const PASSWORD_VARIABLE: &str = "MYSQL_PWD";
/// Their file in the user's home directory, and its section for all programs.
const FILE: &str = ".my.cnf";
const SECTION: &str = "client";

/// Who logs in.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) user: String,
    pub(super) password: Option<Secret>,
    /// Whether the user is of the URL.
    is_of_url: bool,
}

impl Account {
    /// What messages must not show: a user of the URL without a password may be a token.
    pub(super) fn secret(&self) -> Option<Secret> {
        let user = || self.is_of_url.then(|| Secret(self.user.clone()));
        self.password.clone().filter(|password| !password.0.is_empty()).or_else(user)
    }

    /// What the URL does not say is taken from the variable, and then from the file.
    pub(super) fn complete(user: Option<String>, password: Option<Secret>) -> Account {
        let read = || {
            let home = std::env::var_os("HOME")?;
            std::fs::read_to_string(PathBuf::from(home).join(FILE)).ok()
        };
        Account::complete_from(user, password, || std::env::var(PASSWORD_VARIABLE).ok(), read)
    }

    fn complete_from(
        user: Option<String>,
        password: Option<Secret>,
        variable: impl FnOnce() -> Option<String>,
        file: impl FnOnce() -> Option<String>,
    ) -> Account {
        let password = password.or_else(|| variable().map(Secret));
        if let (Some(user), Some(_)) = (&user, &password) {
            return Account { user: user.clone(), password, is_of_url: true };
        }
        let text = file().unwrap_or_default();
        let of_file = value(&text, "user");
        // The password in the file belongs to the user in the file, if there is one.
        let fits = user.is_none() || of_file.is_none() || user == of_file;
        Account {
            is_of_url: user.is_some(),
            password: password.or_else(|| value(&text, "password").filter(|_| fits).map(Secret)),
            user: user.or(of_file).unwrap_or_default(),
        }
    }
}

/// A value of the section for all programs. The last one counts.
fn value(text: &str, name: &str) -> Option<String> {
    let mut section = "";
    let mut found = None;
    for line in text.lines().map(str::trim) {
        if let Some(begun) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = begun.trim();
        } else if section == SECTION
            && let Some((key, value)) = line.split_once('=')
            && key.trim() == name
        {
            found = Some(unquoted(value.trim()));
        }
    }
    found
}

fn unquoted(value: &str) -> String {
    let inside = |quote| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    if let Some(value) = inside('"').or_else(|| inside('\'')) {
        return value.to_owned();
    }
    // A comment may follow.
    let end = value.find(" #").unwrap_or(value.len());
    value[..end].trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "password=wrong\n[mysqld]\nuser=mysql\n[client]\n# a comment\nuser = ada\n\
        password=\"a#b=c \"\n[mysql]\npassword=other\n";

    fn read(user: Option<&str>, password: Option<&str>, text: &str) -> (String, Option<String>) {
        let account = Account::complete_from(
            user.map(str::to_owned),
            password.map(|password| Secret(password.to_owned())),
            || None,
            || Some(text.to_owned()),
        );
        (account.user, account.password.map(|password| password.0))
    }

    #[test]
    fn what_the_url_does_not_say_is_in_the_file() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(read(None, None, TEXT), ("ada".to_owned(), some("a#b=c ")));
        assert_eq!(read(Some("ada"), None, TEXT), ("ada".to_owned(), some("a#b=c ")));
        assert_eq!(read(Some("bob"), None, TEXT), ("bob".to_owned(), None));
        assert_eq!(read(Some("bob"), Some("pw"), TEXT), ("bob".to_owned(), some("pw")));
        assert_eq!(read(None, None, ""), (String::new(), None));
        assert_eq!(
            read(None, None, "[client]\npassword = secret # of ada"),
            (String::new(), some("secret"))
        );
    }

    #[test]
    fn a_user_of_the_url_without_a_password_may_be_a_token() {
        let secret = |user: Option<&str>, password: Option<&str>, text: &str| {
            let password = password.map(|password| Secret(password.to_owned()));
            let user = user.map(str::to_owned);
            let read = || Some(text.to_owned());
            Account::complete_from(user, password, || None, read).secret().map(|secret| secret.0)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(secret(Some("bob"), Some("pw"), TEXT), some("pw"));
        assert_eq!(secret(Some("bob"), None, TEXT), some("bob"));
        assert_eq!(secret(Some("bob"), Some(""), TEXT), some("bob"));
        assert_eq!(secret(Some("ada"), None, TEXT), some("a#b=c "));
        assert_eq!(secret(None, None, "[client]\nuser=ada\n"), None);
    }

    #[test]
    fn the_variable_comes_before_the_file() {
        let account = Account::complete_from(
            Some("ada".to_owned()),
            None,
            || Some("of the variable".to_owned()),
            || Some(TEXT.to_owned()),
        );
        assert_eq!(account.password.map(|password| password.0).unwrap(), "of the variable");
    }
}
