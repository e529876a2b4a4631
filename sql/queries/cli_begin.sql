-- Everything that is shown is of one moment.
begin isolation level repeatable read read only
