//! Enums with a list of their values, and with an id for each of them where formats have one.

/// Declares an enum with `ALL`, its values in their order. `pub enum Name: id { One "one", ... }` also makes a function `id`, whose
/// strings are those of JSON, too.
macro_rules! listed {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $value:ident $(= $number:literal)?,)+ }) => {
        $(#[$meta])*
        pub enum $name { $($(#[$doc])* $value $(= $number)?,)+ }

        impl $name {
            /// All values, in their order.
            pub const ALL: [$name; [$($name::$value),+].len()] = [$($name::$value),+];
        }
    };
    ($(#[$meta:meta])* pub enum $name:ident: $id:ident { $($(#[$doc:meta])* $value:ident $text:literal,)+ }) => {
        listed! { $(#[$meta])* pub enum $name { $($(#[$doc])* #[serde(rename = $text)] $value,)+ } }

        impl $name {
            /// Its name in every format.
            pub fn $id(self) -> &'static str {
                match self {
                    $($name::$value => $text,)+
                }
            }
        }
    };
}

pub(crate) use listed;
