-- The database of the private cluster. Outside a transaction.
create database pgkin;
