//! Times as text, in UTC.
use std::time::{SystemTime, UNIX_EPOCH};

/// A time as in RFC 3339, in UTC with milliseconds.
pub fn iso(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days as i64);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// A time to the second as in `20261121T083647Z` (ISO 8601, basic format): for names of files, which then sort by time.
pub fn compact(time: SystemTime) -> String {
    let digits: String = iso(time).chars().take_while(|c| *c != '.').filter(|c| !matches!(c, '-' | ':')).collect();
    digits + "Z"
}

/// Year, month and day of a day since 1970. Years begin in March here, so that the leap day is their last; 146,097 days
/// are 400 years.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_based = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_based + 2) / 5 + 1;
    let month = if march_based < 10 { march_based + 3 } else { march_based - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_utc_with_leap_years() {
        let at = |s: u64| iso(UNIX_EPOCH + Duration::from_millis(s * 1000 + 7));
        assert_eq!(at(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59.007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.007Z");
        assert_eq!(compact(UNIX_EPOCH + Duration::from_secs(951_782_399)), "20000228T235959Z");
    }
}
