//! What others put into the database under the names of built-in functions and of memlock's table.

use memlock_core::{ErrorKind, Release};

use crate::{Place, refused, shared, try_lock};

/// Functions of a database do not hide built-in ones, as long as no space is in front of the
/// parenthesis.
#[test]
fn no_stored_function_with_the_name_of_a_built_in_one_is_called() {
    let place = Place::on(shared());
    let names = place.sql("SELECT FUNCTION FROM information_schema.SQL_FUNCTIONS");
    let mut created = 0;
    for name in names.lines() {
        // Each call of it fails.
        let function = format!(
            "CREATE FUNCTION {}.`{name}` (x TEXT) RETURNS TEXT RETURN (SELECT 1 UNION SELECT 2)",
            place.database
        );
        created += usize::from(place.server.try_sql(&function).is_ok());
    }
    assert!(created > 100, "{created}");
    for parameters in ["", "engine=InnoDB&prefix=again"] {
        let client = place.client(parameters);
        let mut lock = try_lock(&client, "m").unwrap();
        assert!(try_lock(&place.client(parameters), "m").is_none() && lock.check().unwrap());
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        for sql_mode in ["", "ANSI,IGNORE_SPACE", "ORACLE"] {
            let mut lock = try_lock(&client, "m").unwrap();
            let release = lock.release_sql().unwrap();
            place.sql(&format!("SET SESSION sql_mode='{sql_mode}'; {release}"));
            assert!(try_lock(&client, "m").is_some(), "{sql_mode}");
        }
    }
    // One that is called fails indeed.
    let called = place.server.try_sql(&format!("USE {}; SELECT now (6)", place.database));
    assert!(called.as_ref().is_err_and(|why| why.contains("more than 1 row")), "{called:?}");
}

/// To read a view calls its functions with the reader's rights.
#[test]
fn a_view_in_the_place_of_the_table_is_not_read() {
    let place = Place::on(shared());
    drop(try_lock(&place.client(""), "m").unwrap());
    place.sql(
        "RENAME TABLE memlock_items TO hidden; CREATE VIEW memlock_items AS SELECT * FROM hidden",
    );
    let error = refused(&place.client(""), "m");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("memlock_items is a view"), "{error}");
}

/// Each of these grants one lock twice, or one for two names.
#[test]
fn a_table_with_another_key_or_other_columns_is_refused() {
    for change in [
        "DROP PRIMARY KEY",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (name(4))",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (name, number)",
        "DROP PRIMARY KEY, ADD UNIQUE (number), ADD PRIMARY KEY (name)",
        "DROP PRIMARY KEY, ADD KEY (name)",
        "MODIFY name VARCHAR(250) NOT NULL",
        "MODIFY name VARBINARY(20) NOT NULL",
        "MODIFY number INT UNSIGNED NOT NULL",
        "MODIFY expires BIGINT NOT NULL",
        "MODIFY value VARCHAR(1000) NOT NULL",
        "MODIFY value VARBINARY(100) NOT NULL",
        "DROP COLUMN value",
        "ADD COLUMN id BIGINT NOT NULL AUTO_INCREMENT, ADD KEY (id)",
        "MODIFY number BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, ADD KEY (number)",
        "ADD SYSTEM VERSIONING",
        // Its row is deleted with that of the other table.
        "ADD FOREIGN KEY (name) REFERENCES others (name) ON DELETE CASCADE",
    ] {
        let place = Place::on(shared());
        place.sql("CREATE TABLE others (name VARBINARY(250) PRIMARY KEY)");
        drop(try_lock(&place.client(""), "m").unwrap());
        place.sql("DELETE FROM memlock_items");
        place.sql(&format!("ALTER TABLE memlock_items {change}"));
        let error = refused(&place.client(""), "m");
        assert_eq!(error.kind(), ErrorKind::Config, "{change}: {error}");
        assert!(error.to_string().contains("SHOW CREATE TABLE memlock_items"), "{error}");
        // The error has the statement.
        place.sql("DROP TABLE memlock_items");
        let said = error.to_string();
        let (_, behind) = said.split_once(" with CREATE").unwrap();
        place.sql(&format!("CREATE{}", behind.split(';').next().unwrap()));
        assert!(try_lock(&place.client(""), "m").is_some());
    }
    // What does not matter is not looked at.
    let place = Place::on(shared());
    drop(try_lock(&place.client(""), "m").unwrap());
    place.sql(
        "ALTER TABLE memlock_items ADD KEY (expires), ADD COLUMN note TEXT, MODIFY value LONGBLOB NOT NULL, \
         CHANGE name Name VARBINARY(255) NOT NULL",
    );
    assert!(try_lock(&place.client(""), "m").is_some());
}
