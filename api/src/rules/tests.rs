use super::*;

#[test]
fn durations_are_written_as_configuration_has_them() {
    assert_eq!(seconds_text(250_000_000), "0.25s");
    assert_eq!(seconds_text(-1_000_000_000), "-1s");
    assert_eq!(seconds_text(0), "0s");
}
